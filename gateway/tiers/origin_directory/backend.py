"""The threads that touch the NAS: one pool per origin, so that a NAS that hangs holds up its own
requests and nothing else in the process."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gateway.errors import TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory.drafts import Draft
from gateway.tiers.origin_directory.errors import storage_errors
from gateway.tiers.origin_directory.locks import Locks
from gateway.tiers.origin_directory.mount import Mount
from gateway.tiers.origin_directory.objects import Bucket
from gateway.tiers.origin_directory.walk import Scans

T = TypeVar("T")

# Waiting for disks and networks, hardly computing: more than there are cores.
_THREADS = 32


class Backend:
    """Runs blocking work for one origin, counts it, and opens its buckets."""

    def __init__(
        self,
        name: str,
        path: Path,
        metrics: Metrics,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        attributes: bool = True,
        exchanges: bool = True,
    ) -> None:
        """`attributes` and `exchanges` False: do without extended attributes and without the
        atomic exchange of names, as on a NAS that has neither."""
        self.name = name
        self.metrics = metrics
        self.now_ns = now_ns
        self.mount = Mount(name, path)
        self.locks = Locks()
        self.scans = Scans()
        self._attributes = attributes
        self._exchanges = exchanges
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"origin-{name}")

    async def run(
        self,
        operation: str,
        work: Callable[[], T],
        *,
        dispose: Callable[[T], None] | None = None,
    ) -> T:
        """One request of the origin: counted, then as `step`."""
        self.metrics.origin_requests.labels(operation=operation).inc()
        return await self.step(operation, work, dispose=dispose)

    async def step(
        self,
        operation: str,
        work: Callable[[], T],
        *,
        dispose: Callable[[T], None] | None = None,
    ) -> T:
        """The result of `work`, done in a thread, with the system's errors as S3's. `dispose`
        gets a result that nobody waits for any more."""
        call = self._pool.submit(self._guarded, work)
        try:
            return await asyncio.wrap_future(call)
        except TierUnavailable:
            self.metrics.origin_errors.labels(operation=operation).inc()
            raise
        except asyncio.CancelledError:
            if dispose is not None:
                call.add_done_callback(lambda done: _dispose(done, dispose))
            raise

    @contextmanager
    def bucket(self, name: str) -> Iterator[Bucket]:
        """A bucket, open for as long as the block runs. In a thread. NoSuchBucket also where it
        is deleted in the meantime and the block stumbles over that."""
        with self.mount.bucket(name) as folder:
            bucket = Bucket(
                name, folder, self.locks, attributes=self._attributes, exchanges=self._exchanges
            )
            try:
                yield bucket
            except FileNotFoundError:
                bucket.check()
                raise

    def draft(self, algorithm: str | None = None) -> Draft:
        """A draft that is not begun yet."""
        return Draft(algorithm, attributes=self._attributes)

    async def close(self) -> None:
        """Waits for what is running."""
        await asyncio.to_thread(self._pool.shutdown)

    def _guarded(self, work: Callable[[], T]) -> T:
        with storage_errors(self.name):
            return work()


def _dispose(done: "Future[T]", dispose: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        dispose(done.result())
