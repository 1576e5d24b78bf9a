"""The processes of a node with several workers, and clients that know which worker they have."""

import http.client
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.node.process import GatewayProcess
from tests.waiting import wait_until


class Family:
    """The children of one `feedrack serve`, looked up anew at every question."""

    def __init__(self, node: GatewayProcess) -> None:
        self.node = node

    @property
    def keeper(self) -> psutil.Process:
        [keeper] = self._children("keeper")
        return keeper

    @property
    def workers(self) -> list[psutil.Process]:
        return self._children("worker")

    def everyone(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self.node.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def logged(self, event: str) -> int:
        """How many lines of the log tell of an event."""
        return self.node.log.read_bytes().count(b'"event":"%s"' % event.encode())

    def hold(self, *paths: str) -> None:
        """Waits until every worker answers these without the keeper."""
        with self.clients() as clients:
            for client in clients:
                for path in paths:
                    wait_until(lambda client=client, path=path: self._answers(client, path))  # type: ignore[misc]

    def _answers(self, client: "Client", path: str) -> bool:
        self.keeper.suspend()
        try:
            client.ask(path)
            alone = client.is_answered(0.5)
        finally:
            self.keeper.resume()
        client.answer()
        return alone

    def _children(self, role: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.node.pid).children():
            try:
                command = child.cmdline()
            except psutil.Error:
                continue
            if command[1:4] == ["-m", "gateway.processes", role]:
                found.append(child)
        return found

    @contextmanager
    def clients(self, each: int = 1) -> Iterator[list["Client"]]:
        """Keep-alive clients, `each` at every worker, in the workers' order."""
        by_worker: dict[int, list[Client]] = {worker.pid: [] for worker in self.workers}
        spare: list[Client] = []
        try:
            while any(len(clients) < each for clients in by_worker.values()):
                assert len(spare) < 200, "a worker takes no connections"
                client = Client(self.node)
                client.connect()
                mine = by_worker[client.worker(self)]
                (mine if len(mine) < each else spare).append(client)
            while spare:
                # An idle connection would keep a worker that retires.
                spare.pop().close()
            yield [client for clients in by_worker.values() for client in clients]
        finally:
            for client in [*spare, *(each for mine in by_worker.values() for each in mine)]:
                client.close()


class Client:
    """One keep-alive connection that asks without a signature: its buckets are public."""

    def __init__(self, node: GatewayProcess) -> None:
        url = urlsplit(node.endpoint_url)
        assert url.hostname is not None
        self._connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        self._connection.auto_open = 0

    def connect(self) -> None:
        self._connection.connect()

    @property
    def port(self) -> int:
        port: int = self._connection.sock.getsockname()[1]
        return port

    def worker(self, family: Family) -> int:
        """The process that holds the other end."""
        found: list[int] = []

        def look() -> bool:
            for worker in family.workers:
                for connection in worker.net_connections("inet"):
                    if connection.raddr and connection.raddr[1] == self.port:
                        found.append(worker.pid)
                        return True
            return False

        wait_until(look)
        return found[0]

    def get(self, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers. The connection is opened again where the last answer closed
        it; http.client.HTTPException or OSError where it broke."""
        self.ask(path, **headers)
        return self.answer()

    def head(self, path: str) -> tuple[int, dict[str, str]]:
        """As `get`, of HEAD."""
        self._send("HEAD", path, {})
        status, _, headers = self.answer()
        return status, headers

    def ask(self, path: str, **headers: str) -> None:
        self._send("GET", path, headers)

    def _send(self, method: str, path: str, headers: dict[str, str]) -> None:
        if self._connection.sock is None:
            self._connection.connect()
        self._connection.request(method, path, headers=headers)

    def is_answered(self, seconds: float) -> bool:
        """Whether an answer begins within that time."""
        return bool(select.select([self._connection.sock], [], [], seconds)[0])

    def answer(self) -> tuple[int, bytes, dict[str, str]]:
        answer = self._connection.getresponse()
        body = answer.read()
        return answer.status, body, {name.lower(): value for name, value in answer.getheaders()}

    def close(self) -> None:
        self._connection.close()


def public(**buckets: dict[str, Any]) -> dict[str, Any]:
    """Settings of a node with two workers and buckets that anybody may read."""
    return {
        "node": {"workers": 2},
        "buckets": {name: {"public_read": True, **told} for name, told in buckets.items()},
    }
