"""Many objects at once: one batch request where a gateway answers, single GETs anywhere else."""

import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from feedrack import frames
from feedrack.client import TROUBLE, Answer, Client, refusal
from feedrack.endpoint import Access
from feedrack.errors import FeedrackError, Unavailable

if TYPE_CHECKING:
    from feedrack.rdma.arenas import BatchReader
    from feedrack.rdma.moving import Counts

Outcome = bytes | FeedrackError
_BUFFER_BYTES = 256 * 1024
_BATCH: tuple[tuple[str, str], ...] = (("feedrack-batch", ""),)
# How a gateway from before batches refuses one.
_UNKNOWN = frozenset((400, 405, 501))


class _NoBatches(Exception):  # noqa: N818 - never leaves this module
    pass


class Reader:
    """Reads objects of one bucket. From any number of threads, after any fork.

    Whether the endpoint answers batches is asked once, and only of a feedrack gateway: no other
    endpoint ever sees a request that is not S3's."""

    def __init__(
        self, bucket: str, access: Access, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.client = Client(bucket, access, pause=pause)
        self._batches = True
        self._rdma = _batches_by_rdma(self.client) if access.rdma else None
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def read(self, key: str, byte_range: str | None = None, *, etag: str | None = None) -> bytes:
        """One object, or the part of it that a Range header's value names.

        ObjectChanged where it has another ETag than `etag` (unquoted)."""
        return self.client.read(key, byte_range, etag=etag)

    def read_each(
        self, keys: Sequence[str], ranges: Sequence[str | None] | None = None
    ) -> list[Outcome]:
        """Each object's bytes, or its error in its place, in the order asked.

        Raises what is wrong with all of them: AccessRefused of the bucket, Unavailable."""
        if len(keys) > 1 and self._batches and self.client.finds_gateway():
            found: list[Outcome] = []
            try:
                for start in range(0, len(keys), frames.LIMIT):
                    part = slice(start, start + frames.LIMIT)
                    found += self._batch(keys[part], None if ranges is None else ranges[part])
            except _NoBatches:
                return self._singly(keys, ranges)
            return found
        return self._singly(keys, ranges)

    @property
    def rdma_counts(self) -> "Counts | None":
        """How batches came in this process until now; None where RDMA is switched off."""
        return None if self._rdma is None else self._rdma.counts

    def close(self) -> None:
        """Ends connections and threads. The next read opens new ones."""
        threads, self._threads = self._threads, None
        if threads is not None and threads[0] == os.getpid():
            threads[1].shutdown(wait=False, cancel_futures=True)
        if self._rdma is not None:
            self._rdma.close()
        self.client.close()

    def _batch(self, keys: Sequence[str], ranges: Sequence[str | None] | None) -> list[Outcome]:
        """The outcomes of one request, and of those after it for what it did not bring.

        Raises _NoBatches."""
        found: list[Outcome | None] = [None] * len(keys)
        told: dict[str, str] = {}
        if self._rdma is not None:
            told = self._by_rdma(self._rdma, keys, ranges, found)
        left: Sequence[int] = [index for index, one in enumerate(found) if _unsettled(one)]
        if not left:
            return [outcome for outcome in found if outcome is not None]
        attempt = 1
        while True:
            trouble = self._batch_once(keys, ranges, left, found, told)
            still = [index for index in left if _unsettled(found[index])]
            settled = [outcome for outcome in found if outcome is not None]
            if not still:
                return settled
            if attempt >= self.client.access.attempts:
                if len(settled) == len(found):
                    return settled
                raise Unavailable(f"a batch of {len(left)} objects: {trouble}, {attempt} times")
            self.client.wait(attempt)
            # What came moves the work on, however little: only attempts in vain count.
            attempt = attempt + 1 if len(still) == len(left) else 1
            left = still

    def _by_rdma(
        self,
        rdma: "BatchReader",
        keys: Sequence[str],
        ranges: Sequence[str | None] | None,
        found: list[Outcome | None],
    ) -> dict[str, str]:
        """Puts into `found` what comes by RDMA; what to tell the gateway of why not all did."""
        try:
            for frame in rdma.read(keys, ranges):
                self._settle(frame, keys, frame.position, found)
        except rdma.Trouble as trouble:
            return rdma.fall_back(trouble)
        except FeedrackError:
            # The same request over HTTP finds the same, and knows what it means.
            return {}
        return {}

    def _batch_once(
        self,
        keys: Sequence[str],
        ranges: Sequence[str | None] | None,
        asked: Sequence[int],
        found: list[Outcome | None],
        told: dict[str, str],
    ) -> str:
        """Puts into `found` what comes; why not all of it came."""
        body = frames.encode_request(
            [keys[index] for index in asked],
            None if ranges is None else [ranges[index] for index in asked],
        )
        headers = {"content-type": "application/json", **told}
        try:
            with self.client.open("POST", None, _BATCH, headers, body) as streamed:
                kind = streamed.headers.get("content-type", "")
                if streamed.status == 200 and kind == frames.CONTENT_TYPE:
                    self._take(io.BufferedReader(streamed.body, _BUFFER_BYTES), keys, asked, found)
                    return "some of them stayed unavailable"
                answer = Answer(streamed.status, streamed.headers, streamed.body.read())
        except (*TROUBLE, frames.FramesBroken) as error:
            return repr(error)
        if answer.status in _UNKNOWN:
            # Said at any time: behind one address there may be gateways of several ages.
            self._batches = False
            raise _NoBatches
        refused = refusal(answer, self.client.endpoint.bucket, None)
        if isinstance(refused, Unavailable):
            return str(refused)
        raise refused

    def _take(
        self,
        answer: io.BufferedReader,
        keys: Sequence[str],
        asked: Sequence[int],
        found: list[Outcome | None],
    ) -> None:
        for frame in frames.read_frames(answer.read, len(asked)):
            self._settle(frame, keys, asked[frame.position], found)
        # The end of the body too, so that the connection can be used again.
        if answer.read(1):
            raise frames.FramesBroken("more after the last frame")

    def _settle(
        self,
        frame: frames.Frame,
        keys: Sequence[str],
        index: int,
        found: list[Outcome | None],
    ) -> None:
        found[index] = frame.body if frame.status < 300 else self._refused(frame, keys[index])

    def _refused(self, frame: frames.Frame, key: str) -> FeedrackError:
        said = frames.said_of(frame)
        text = f"<Code>{said.code}</Code><Message>{said.message}</Message>"
        return refusal(Answer(frame.status, {}, text.encode()), self.client.endpoint.bucket, key)

    def _singly(self, keys: Sequence[str], ranges: Sequence[str | None] | None) -> list[Outcome]:
        def one(asked: tuple[str, str | None]) -> Outcome:
            try:
                return self.read(*asked)
            except FeedrackError as error:
                if error.key is None:
                    raise
                return error

        pairs: Iterator[tuple[str, str | None]] = zip(
            keys, ranges or [None] * len(keys), strict=True
        )
        if len(keys) == 1 or self.client.access.connections <= 1:
            return [one(pair) for pair in pairs]
        return list(self._pool().map(one, pairs))

    def _pool(self) -> ThreadPoolExecutor:
        process = os.getpid()
        threads = self._threads
        if threads is None or threads[0] != process:
            # A parent's threads do not live on in its child.
            pool = ThreadPoolExecutor(self.client.access.connections, "feedrack-get")
            threads = self._threads = (process, pool)
        return threads[1]


def _batches_by_rdma(client: Client) -> "BatchReader":
    # Not for those who import feedrack and read no dataset.
    from feedrack.rdma.arenas import BatchReader

    return BatchReader(client)


def _unsettled(outcome: Outcome | None) -> bool:
    return outcome is None or isinstance(outcome, Unavailable)
