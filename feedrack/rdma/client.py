"""A client that reads objects into memory and writes them out of it."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Self
from xml.sax.saxutils import escape

from feedrack import frames
from feedrack.client import Answer, refusal
from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access, given_credentials, parse_address
from feedrack.errors import FeedrackError, RequestRefused, WrongAddress, WrongMemory
from feedrack.rdma import memory as memories
from feedrack.rdma.batches import fill, full
from feedrack.rdma.link import Link
from feedrack.rdma.memory import CopyIn, CopyOut, Memory
from feedrack.rdma.moving import Counts, Mover
from feedrack.rdma.objects import Result, get_object, put_object
from feedrack.rdma.opening import NoRdma, Wanted, tell_of_forks
from gateway.rdma.device import VerbFailed
from gateway.rdma.wire import MEMORY_FULL_STATUS, Row

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,1024})</UploadId>")
_ETAG = re.compile(rb"<ETag>(?:&quot;|&#34;|\")?([^<&\"]{1,256})")
_PARTS = 10_000


class BatchRow(NamedTuple):
    """One object of a batch: its `length` bytes are `memory`, which is at `offset` of the memory
    given; or why not, by S3's `code`. `range` is a Content-Range, `etag` unquoted."""

    key: str
    status: int
    offset: int
    length: int
    memory: Memory
    etag: str
    last_modified_ms: int
    range: str
    code: str
    message: str


class Client:
    """Objects of one bucket between a feedrack gateway and memory of this process: by RDMA where
    both ends can, over HTTP else, with the same results.

    Endpoint, region and keys are found as by `feedrack.open_dataset`. `device`, `port` and
    `gid_index`: else the first active port and its best GID. `timeout_seconds`: for each wait for
    the endpoint, and a second more for every 16 MiB of the memory where they move by RDMA, since
    the answer begins once all is there. For any number of threads; after a fork a child connects
    anew. Nothing is opened before it is needed. Raises the errors of `feedrack.errors`."""

    def __init__(
        self,
        url: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        anonymous: bool = False,
        ca_file: str | None = None,
        timeout_seconds: float = 60.0,
        attempts: int = 6,
        connections: int = 8,
        device: str | None = None,
        port: int | None = None,
        gid_index: int | None = None,
    ) -> None:
        bucket, prefix = parse_address(url)
        if prefix:
            raise WrongAddress(f"a client is of a bucket, and keys are whole: {url}")
        access = Access(
            endpoint_url,
            region,
            profile,
            given_credentials(access_key, secret_key, session_token),
            anonymous,
            ca_file,
            timeout_seconds,
            attempts,
            connections,
        )
        self._http = HttpClient(bucket, access)
        self._link = Link(self._http, Wanted(device, port, gid_index))
        self._mover = Mover(self._http, self._link)
        tell_of_forks(self)

    def __repr__(self) -> str:
        return f"<feedrack rdma client of s3://{self._http.endpoint.bucket}>"

    @property
    def counts(self) -> Counts:
        """What was done in this process until now."""
        return self._mover.counts

    # Memory

    def register(self, buffer: "WriteableBuffer") -> Memory:
        """Memory of any writable object with the buffer protocol, in one run: bytearray, mmap, an
        array. It must not be resized or freed before `close`. WrongMemory."""
        return self._registered(memories.of_buffer(buffer))

    def register_address(
        self,
        address: int,
        size_bytes: int,
        *,
        copy: CopyIn | None = None,
        read: CopyOut | None = None,
    ) -> Memory:
        """Memory by its address, which must stay good until `close`. `copy(offset, bytes)` and
        `read(offset, size)`: for memory that only a device reaches, used where RDMA cannot be."""
        return self._registered(memories.of_address(address, size_bytes, copy, read))

    def register_dmabuf(
        self,
        descriptor: int,
        offset: int,
        size_bytes: int,
        *,
        copy: CopyIn | None = None,
        read: CopyOut | None = None,
    ) -> Memory:
        """A part of a dma-buf: a device's memory. Without `copy(offset, bytes)` and `read(offset,
        size)` what cannot move by RDMA raises WrongMemory."""
        return self._registered(memories.of_dmabuf(descriptor, offset, size_bytes, copy, read))

    # Objects

    def get_into(
        self,
        key: str,
        memory: Memory,
        byte_range: str | None = None,
        *,
        etag: str | None = None,
    ) -> Result:
        """Reads an object to the beginning of the memory; `byte_range` as in a Range header.

        ObjectChanged where it has another ETag than `etag`; WrongMemory where it does not fit.
        After an error nobody writes to the memory any more, and what is in it is undefined."""
        return get_object(self._mover, key, memory, byte_range, etag)

    def get(self, key: str, byte_range: str | None = None, *, etag: str | None = None) -> bytes:
        """An object's bytes, over HTTP: what is read once is not worth being registered."""
        return self._http.read(key, byte_range, etag=etag)

    def put_from(
        self,
        key: str,
        memory: Memory,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        crc32: int | None = None,
    ) -> Result:
        """Writes an object of all of the memory, which must not change meanwhile. `crc32`: of the
        bytes, where this processor cannot read them."""
        headers = _object_headers(content_type, metadata)
        return put_object(self._mover, key, memory, headers, crc32=crc32)

    def create_upload(
        self,
        key: str,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Begins a multipart upload; its id."""
        headers = _object_headers(content_type, metadata)
        answer = self._http.ask("POST", key, (("uploads", ""),), headers)
        found = _UPLOAD_ID.search(answer.body)
        if found is None:
            raise RequestRefused("an upload without an id", key=key)
        return found[1].decode()

    def upload_part_from(
        self, key: str, upload_id: str, number: int, memory: Memory, *, crc32: int | None = None
    ) -> Result:
        """Writes a part of an upload, counted from 1, of all of the memory."""
        query = (("partNumber", str(number)), ("uploadId", upload_id))
        return put_object(self._mover, key, memory, {}, query=query, crc32=crc32)

    def complete_upload(self, key: str, upload_id: str, etags: Sequence[str]) -> str:
        """Makes the object of its parts, whose ETags are given in order; the object's ETag."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._http.ask("POST", key, (("uploadId", upload_id),), None, body)
        found = _ETAG.search(answer.body)
        if found is None:
            # S3 may answer 200 before it knows.
            raise refusal(answer._replace(status=500), self._http.endpoint.bucket, key)
        return found[1].decode()

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Ends an upload without an object."""
        self._http.ask("DELETE", key, (("uploadId", upload_id),))

    def upload_from(
        self,
        key: str,
        memory: Memory,
        part_bytes: int = 64 * 1024**2,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Result:
        """Writes an object of all of the memory in parts, several at once; all of it or none."""
        if part_bytes < 1:
            raise WrongAddress(f"parts of {part_bytes} bytes", key=key)
        starts = range(0, max(1, memory.size_bytes), part_bytes)
        if len(starts) > _PARTS:
            raise WrongMemory(f"more than {_PARTS} parts of {part_bytes} bytes", key=key)
        upload_id = self.create_upload(key, content_type=content_type, metadata=metadata)

        def one(number: int) -> Result:
            start = starts[number]
            part = memory[start : start + part_bytes]
            return self.upload_part_from(key, upload_id, number + 1, part)

        try:
            with ThreadPoolExecutor(max(1, self._http.access.connections), "feedrack-put") as pool:
                parts = list(pool.map(one, range(len(starts))))
            etag = self.complete_upload(key, upload_id, [part.etag for part in parts])
        except BaseException:
            self.abort_upload(key, upload_id)
            raise
        reasons = [part.reason for part in parts if part.reason is not None]
        return Result(
            memory.size_bytes,
            etag,
            {},
            "http" if reasons else "rdma",
            reasons[0] if reasons else None,
        )

    def batch_into(
        self,
        keys: Sequence[str],
        memory: Memory,
        ranges: Sequence[str | None] | None = None,
        *,
        strict: bool = False,
    ) -> list[BatchRow]:
        """Reads objects into the memory, one behind the other in the order asked; a row for each.

        One that cannot be had takes no room. The first that does not fit and all after it have
        status 507 and code `RDMAMemoryFull`: ask again for those. `strict`: the first that cannot
        be had is raised instead. `ranges` as Range headers, None for the whole."""
        rows: list[BatchRow] = []
        used = 0
        for start in range(0, len(keys), frames.LIMIT):
            part = slice(start, start + frames.LIMIT)
            wanted = None if ranges is None else ranges[part]
            found = fill(self._mover, keys[part], wanted, memory[used:])
            for key, row in zip(keys[part], found, strict=True):
                if strict and row.status >= 300:
                    raise self._row_error(key, row)
                rows.append(_row(key, row, memory, used))
            used = max((row.offset + row.length for row in rows), default=0)
            if found[-1].status == MEMORY_FULL_STATUS:
                # All after it have no room either, however small they are.
                left = keys[start + len(found) :]
                rows += [_row(key, full(used), memory, 0) for key in left]
                break
        return rows

    def close(self) -> None:
        """Ends session, device and connections; registered memory is registered no more. The next
        request opens new ones. MemoryLost, where all else is ended."""
        try:
            self._link.close()
        finally:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forked(self) -> None:
        """Called in a child, whose parent keeps session and device."""
        self._link.forked()
        self._mover.forked()

    def _registered(self, memory: Memory) -> Memory:
        """Registers now what would else be at the first request, where there is a device."""
        try:
            memory.locate(self._link.opened())
        except (NoRdma, VerbFailed):
            # Each request tells its reason.
            return memory
        return memory

    def _row_error(self, key: str, row: Row) -> FeedrackError:
        if row.status == MEMORY_FULL_STATUS:
            return WrongMemory(f"no room is left in the memory from {key} on", key=key)
        text = f"<Code>{escape(row.code)}</Code><Message>{escape(row.message)}</Message>"
        return refusal(Answer(row.status, {}, text.encode()), self._http.endpoint.bucket, key)


def _row(key: str, row: Row, memory: Memory, before: int) -> BatchRow:
    offset = before + row.offset
    return BatchRow(
        key,
        row.status,
        offset,
        row.length,
        memory[offset : offset + row.length],
        row.etag,
        row.last_modified_ms,
        row.range,
        row.code,
        row.message,
    )


def _object_headers(content_type: str | None, metadata: Mapping[str, str] | None) -> dict[str, str]:
    headers = {} if content_type is None else {"content-type": content_type}
    for name, value in (metadata or {}).items():
        if not (name.isascii() and value.isascii() and value.isprintable()):
            raise WrongAddress(f"metadata is of printable ASCII: {name}")
        headers[f"x-amz-meta-{name.lower()}"] = value
    return headers
