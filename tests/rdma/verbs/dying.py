"""A client to be killed in the middle of a transfer, and ways to make one lie."""

import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedrack.rdma import Client, Memory
from feedrack.rdma.link import Session
from gateway.rdma.token import Token, parse_token
from tests.node.process import ACCESS_KEY, SECRET_KEY


def start(endpoint_url: str, method: str, shared: Path) -> subprocess.Popen[bytes]:
    """A process that moves "big" to, or "dying" out of, a file's memory."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.rdma.verbs.dying", endpoint_url, method, str(shared)]
    )


def tokens_of(client: Client, memory: Memory) -> Callable[[], Token]:
    """Makes honest tokens of a client's own session."""

    def honest() -> Token:
        lease = client._link.lease(memory)
        token = parse_token(lease.token)
        assert token is not None
        return token

    return honest


def lie(patch: pytest.MonkeyPatch, token: Callable[[Any], str]) -> None:
    """Has all sessions send what `token` makes up."""
    asked: list[int] = []

    def told(self: Session, memory: Memory) -> str:
        if asked:
            # Asked by `token` itself, for an honest one.
            asked.pop()
            return real(self, memory)
        asked.append(1)
        return token(memory)

    real = Session.token
    patch.setattr(Session, "token", told)


def break_pair(client: Client) -> None:
    """Moves the client's queue pair to the error state, as its device does after a fault."""
    session = client._link._session
    assert session is not None
    session._pair.fail()


def main(endpoint_url: str, method: str, shared: str) -> None:
    with Path(shared).open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        client = Client(
            "s3://train", endpoint_url=endpoint_url, access_key=ACCESS_KEY, secret_key=SECRET_KEY
        )
        with client.register(view) as memory:
            if method == "get":
                client.get_into("big", memory)
            else:
                client.put_from("dying", memory)


if __name__ == "__main__":
    main(*sys.argv[1:])
