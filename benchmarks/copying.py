"""What packing is held against: the same bytes, fetched and written again by `packer`'s own client.

A process of its own. It lists the prefix, GETs every object over as many connections as `packer`
does, and writes them back to back as objects as large as shards, by multipart upload, part by part
as they come. It keeps no index, takes no checksum and touches no disk: what is left is what anybody
pays who moves these bytes.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import msgspec
from lxml import etree
from msgspec import Struct

from feedrack.signing import Query
from packer.stores.choice import open_store
from packer.stores.protocol import Listed
from packer.stores.s3 import text
from packer.stores.s3_client import Answer, S3Client, find_target

# As `packer` uploads, and as it hands neighbours to a thread.
_PART_BYTES = 16 * 1024**2
_PARTS_AT_ONCE = 4
_BATCH_OBJECTS = 32
_BATCH_BYTES = 2 * 1024**2


class Asked(Struct, frozen=True, kw_only=True):
    """What to copy and where to, in objects of which size, with how many requests at once."""

    endpoint_url: str
    bucket: str
    prefix: str
    to_prefix: str
    shard_bytes: int
    jobs: int


class Told(Struct, frozen=True, kw_only=True):
    """What was copied, without the program's start."""

    objects: int
    size_bytes: int
    seconds: float


class _Upload:
    """One object that grows by parts, a few of them on their way at a time."""

    def __init__(self, client: S3Client, threads: ThreadPoolExecutor, key: str) -> None:
        self._client = client
        self._threads = threads
        self._key = key
        answer = _right(client.ask("POST", key, (("uploads", ""),)))
        self._query: Query = (("uploadId", text(etree.fromstring(answer.body), "UploadId")),)
        self._parts: list[Future[str]] = []
        self._room = threading.Semaphore(_PARTS_AT_ONCE)
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held_bytes += len(data)
        self.size_bytes += len(data)
        if self._held_bytes >= _PART_BYTES:
            self._send()

    def close(self) -> None:
        if self._pieces:
            self._send()
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{part.result()}</ETag></Part>"
            for number, part in enumerate(self._parts, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        _right(self._client.ask("POST", self._key, self._query, body=body))

    def _send(self) -> None:
        data, self._pieces, self._held_bytes = b"".join(self._pieces), [], 0
        query: Query = (("partNumber", str(len(self._parts) + 1)), *self._query)

        def send() -> str:
            try:
                return _right(self._client.ask("PUT", self._key, query, body=data)).headers["etag"]
            finally:
                self._room.release()

        self._room.acquire()
        self._parts.append(self._threads.submit(send))


def copy(asked: Asked) -> Told:
    """Copies. RuntimeError where an answer is not a success."""
    began = time.monotonic()
    client = S3Client(find_target(asked.bucket, asked.endpoint_url, None))
    count = size_bytes = shards = 0
    upload: _Upload | None = None
    with (
        closing(client),
        closing(open_store(asked.bucket, asked.endpoint_url, None)) as store,
        ThreadPoolExecutor(_PARTS_AT_ONCE) as uploads,
    ):
        for data in _read(client, store.listing(asked.prefix), asked.jobs):
            if upload is not None and upload.size_bytes + len(data) > asked.shard_bytes:
                upload.close()
                upload = None
            if upload is None:
                upload = _Upload(client, uploads, f"{asked.to_prefix}{shards:06}")
                shards += 1
            upload.add(data)
            count += 1
            size_bytes += len(data)
        if upload is not None:
            upload.close()
    return Told(objects=count, size_bytes=size_bytes, seconds=time.monotonic() - began)


def _read(client: S3Client, listing: Iterable[Listed], jobs: int) -> Iterator[bytes]:
    """Every object's bytes in the order listed."""

    def get(batch: list[Listed]) -> list[bytes]:
        return [
            _right(client.ask("GET", item.key, headers={"if-match": f'"{item.etag}"'})).body
            for item in batch
        ]

    batches = _batches(listing)
    window: deque[Future[list[bytes]]] = deque()
    with ThreadPoolExecutor(jobs) as threads:
        window.extend(threads.submit(get, batch) for batch in islice(batches, jobs + 2))
        while window:
            found = window.popleft().result()
            window.extend(threads.submit(get, batch) for batch in islice(batches, 1))
            yield from found


def _batches(listing: Iterable[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    size_bytes = 0
    for item in listing:
        batch.append(item)
        size_bytes += item.size_bytes
        if len(batch) >= _BATCH_OBJECTS or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _right(answer: Answer) -> Answer:
    if not 200 <= answer.status < 300:
        raise RuntimeError(f"status {answer.status}: {answer.body[:300]!r}")
    return answer


if __name__ == "__main__":
    told = copy(msgspec.json.decode(sys.stdin.buffer.read(), type=Asked))
    sys.stdout.buffer.write(msgspec.json.encode(told))
