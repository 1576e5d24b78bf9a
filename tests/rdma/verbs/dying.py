"""A client that is killed in the middle of a transfer. Of the tests it imports nothing: starting
takes long where processors are emulated."""

import mmap
import subprocess
import sys
from pathlib import Path

from feedrack.rdma import Client


def start(url: str, keys: tuple[str, str], method: str, shared: Path) -> subprocess.Popen[bytes]:
    """A process that moves "big" to, or "dying" out of, a file's memory. `keys`: access and
    secret."""
    words = [url, *keys, method, str(shared)]
    return subprocess.Popen([sys.executable, "-m", "tests.rdma.verbs.dying", *words])


def main(url: str, access_key: str, secret_key: str, method: str, shared: str) -> None:
    with Path(shared).open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        client = Client(
            "s3://train", endpoint_url=url, access_key=access_key, secret_key=secret_key
        )
        with client.register(view) as memory:
            if method == "get":
                client.get_into("big", memory)
            else:
                client.put_from("dying", memory)


if __name__ == "__main__":
    main(*sys.argv[1:])
