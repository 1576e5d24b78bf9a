"""A gateway of this process, in a thread of its own, whose soft device reaches the tests'."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from gateway.rdma import verbs
from tests.rdma.soft import Fabric
from tests.s3.running import ACCESS_KEY, SECRET_KEY, Running, running

REGION = "us-east-1"
OPTIONS: dict[str, Any] = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": REGION}


class RdmaNode:
    """The gateway, its bucket "train" as a folder, and the fabric that it hangs on."""

    def __init__(
        self, running: Running, fabric: Fabric | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.url = running.node.s3_url
        self._fabric = fabric
        self.folder = running.root / "train"
        self.folder.mkdir()
        self.rdma = running.node.parts.rdma
        self._running = running
        self._loop = loop

    @property
    def fabric(self) -> Fabric:
        """What its soft device hangs on."""
        assert self._fabric is not None
        return self._fabric

    def put(self, key: str, data: bytes) -> None:
        """An object, behind the gateway's back."""
        (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / key).write_bytes(data)

    def read(self, key: str) -> bytes:
        """An object as the origin has it."""
        return (self.folder / key).read_bytes()

    def s3(self) -> Any:
        """An ordinary client."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def counted(self, name: str, **labels: str) -> float:
        """A metric of the gateway's."""
        value = self._running.node.metrics.registry.get_sample_value(f"feedrack_{name}", labels)
        return value or 0.0

    def moves_again(self) -> None:
        """Lets go what the fabric held."""

        def go_on() -> None:
            self.fabric.held = False
            for pair in list(self.fabric.pairs.values()):
                pair.go_on()

        self._done(go_on)

    def end_sessions(self) -> None:
        """The gateway ends them all, as one that was restarted has none."""

        def end() -> None:
            for session in list(self.rdma._table):
                session.line.fail("closed")

        self._done(end)

    def _done(self, what: Callable[[], None]) -> None:
        async def run() -> None:
            what()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)


@contextmanager
def rdma_node(directory: Path, fabric: Fabric | None, **rdma: Any) -> Iterator[RdmaNode]:
    """Serves until the end of the `with`; without a fabric over a real device."""
    started: list[RdmaNode] = []
    trouble: list[BaseException] = []
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        settings = {"buffers": "4MiB", "transfer_timeout_seconds": 5.0, **rdma}
        async with running(
            directory,
            rdma=settings,
            # Objects are written behind the gateway's back.
            buckets={"train": {"freshness_seconds": 0}},
            cache={"capacity": "256MiB"},
            open_device=verbs.open_device if fabric is None else lambda *_: fabric.device(),
        ) as node:
            started.append(RdmaNode(node, fabric, asyncio.get_running_loop()))
            ready.set()
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # told by whoever waits
            trouble.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    try:
        if started:
            yield started[0]
    finally:
        if started:
            started[0]._loop.call_soon_threadsafe(over.set)
        thread.join(60)
        if trouble:
            raise trouble[0]
