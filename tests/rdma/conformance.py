"""One table of what an S3 request answers, held against HTTP and RDMA alike: a case says what is
stored, what is asked, and what must come of it; a transport says how its payload travels."""

import asyncio
import hashlib
import os
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from feedrack.endpoint import Access
from feedrack.errors import FeedrackError, MissingObject
from feedrack.profile import Credentials
from feedrack.reading import Reader
from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import REPLY_HEADER, TRANSFERRED_HEADER, Table
from tests.rdma.raw import RawClient
from tests.s3.running import ACCESS_KEY, SECRET_KEY, Reply

MIB = 1024**2
# The sizes of the issue: nothing, a byte, a page, a chunk and its neighbours, many chunks.
SIZES = (0, 1, 4096, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 64 * MIB)
SMALL_SIZES = (0, 1, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB + 17)
# The parts of each upload: the same sizes. All but an upload's last are of 5 MiB or more.
UPLOADS = ((0,), (5 * MIB, 1), (8 * MIB, 4096), (8 * MIB + 1, 8 * MIB - 1), (64 * MIB,))
# The objects of each batch: the same sizes again, and one among small ones.
BATCHES = ((0, 1, 4096, 300_000, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1), (1, 64 * MIB))


class Outcome(NamedTuple):
    """What a client has of an answer, whichever way its payload came."""

    status: int
    code: str
    payload: bytes
    headers: Mapping[str, str]


class Transport(Protocol):
    """How payloads travel."""

    async def get(self, target: str, headers: Mapping[str, str]) -> Outcome: ...

    async def put(self, target: str, headers: Mapping[str, str], data: bytes) -> Outcome: ...

    async def batch(self, bucket: str, objects: list[dict[str, str]]) -> list[tuple[int, bytes]]:
        """Status and bytes of each object."""
        ...


class OverHttp:
    """As every S3 client does it."""

    def __init__(self, client: RawClient) -> None:
        self._client = client

    async def get(self, target: str, headers: Mapping[str, str]) -> Outcome:
        reply = await self._client.ask("GET", target, headers)
        assert REPLY_HEADER not in reply.headers
        return _outcome(reply, reply.body if reply.status < 300 else b"")

    async def put(self, target: str, headers: Mapping[str, str], data: bytes) -> Outcome:
        return _outcome(await self._client.ask("PUT", target, headers, data), b"")

    async def batch(self, bucket: str, objects: list[dict[str, str]]) -> list[tuple[int, bytes]]:
        access = Access(
            self._client.running.node.s3_url,
            credentials=Credentials(ACCESS_KEY, SECRET_KEY, None),
            rdma=False,
        )
        reader = Reader(bucket, access)
        ranges = [each.get("range") for each in objects]
        found = await asyncio.to_thread(reader.read_each, [each["key"] for each in objects], ranges)
        reader.close()
        return [
            (404 if isinstance(each, MissingObject) else 206 if wanted else 200, _bytes(each))
            for each, wanted in zip(found, ranges, strict=True)
        ]


class OverRdma:
    """Past the socket. The memory is wiped before, so that what is there came."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._dirty_bytes = len(client.memory)

    async def get(self, target: str, headers: Mapping[str, str]) -> Outcome:
        memory = self._client.memory
        memory[: self._dirty_bytes] = bytes(self._dirty_bytes)
        reply = await self._client.move("GET", target, headers)
        payload = b""
        if reply.status < 300:
            assert reply.headers[REPLY_HEADER] == str(reply.status)
            assert reply.headers["content-length"] == "0"
            payload = memory[: int(reply.headers[TRANSFERRED_HEADER])]
        self._dirty_bytes = len(payload)
        # Nothing beyond what was said to have moved.
        assert not any(memory[len(payload) : len(payload) + 65_536])
        return _outcome(reply, payload)

    async def put(self, target: str, headers: Mapping[str, str], data: bytes) -> Outcome:
        memory = self._client.memory
        memory[: len(data)] = data
        self._dirty_bytes = max(self._dirty_bytes, len(data))
        token = self._client.token(len(data))
        reply = await self._client.move("PUT", target, headers, token=token)
        if reply.status < 300:
            assert reply.headers[TRANSFERRED_HEADER] == str(len(data))
        return _outcome(reply, b"")

    async def batch(self, bucket: str, objects: list[dict[str, str]]) -> list[tuple[int, bytes]]:
        memory = self._client.memory
        body = msgspec.json.encode({"objects": objects})
        reply = await self._client.move("POST", f"/{bucket}?feedrack-batch", body=body)
        assert reply.status == 200, reply.body
        table = msgspec.json.decode(reply.body, type=Table)
        self._dirty_bytes = max(self._dirty_bytes, table.bytes)
        assert reply.headers[TRANSFERRED_HEADER] == str(table.bytes)
        return [(row.status, memory[row.offset : row.offset + row.length]) for row in table.objects]


def checksum(data: bytes) -> dict[str, str]:
    return {"x-amz-checksum-crc32": b64encode(zlib.crc32(data).to_bytes(4)).decode()}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Read(NamedTuple):
    """A GET of an object of `size` bytes: the status, and which of its bytes come."""

    name: str
    size: int
    headers: Mapping[str, str]
    status: int
    start: int = 0
    stop: int = 0
    code: str = ""


READS = (
    Read("all of it", 2 * MIB, {}, 200, 0, 2 * MIB),
    Read("a range", 2 * MIB, {"range": "bytes=5-1048580"}, 206, 5, MIB + 5),
    Read("the last bytes", 2 * MIB, {"range": "bytes=-7"}, 206, 2 * MIB - 7, 2 * MIB),
    Read("from a byte on", 2 * MIB, {"range": f"bytes={MIB}-"}, 206, MIB, 2 * MIB),
    Read("one byte", 2 * MIB, {"range": "bytes=0-0"}, 206, 0, 1),
    Read("a range past the end", 5, {"range": "bytes=9-"}, 416, code="InvalidRange"),
    Read("another version", 5, {"if-match": '"x"'}, 412, code="PreconditionFailed"),
    Read("unchanged", 5, {"if-none-match": "*"}, 304),
    Read("a range that makes no sense", 9, {"range": "lines=1-2"}, 200, 0, 9),
)


async def check_read(transport: Transport, client: RawClient, case: Read) -> None:
    """The case over a transport."""
    data = os.urandom(case.size)
    await store(client, "/train/object", data)
    found = await transport.get("/train/object", case.headers)
    assert (found.status, found.code) == (case.status, case.code)
    assert sha256(found.payload) == sha256(data[case.start : case.stop])
    if case.status == 206:
        assert found.headers["content-range"] == (f"bytes {case.start}-{case.stop - 1}/{case.size}")
    if case.status < 300:
        assert found.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'


async def check_size(transport: Transport, client: RawClient, size: int) -> None:
    """An object of a size is stored and read back."""
    data = os.urandom(size)
    digest = sha256(data)
    stored = await transport.put("/train/sized", checksum(data), data)
    assert (stored.status, stored.code) == (200, "")
    assert stored.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
    found = await transport.get("/train/sized", {})
    assert found.status == 200
    assert sha256(found.payload) == digest


async def check_refused_writes(transport: Transport, client: RawClient) -> None:
    """What must not be stored is not."""
    data = os.urandom(5000)
    target = f"/train/refused-{os.urandom(4).hex()}"
    wrong = await transport.put(target, checksum(b"else"), data)
    assert (wrong.status, wrong.code) == (400, "BadDigest")
    assert (await transport.get(target, {})).code == "NoSuchKey"
    await store(client, target, b"first")
    again = await transport.put(target, {**checksum(data), "if-none-match": "*"}, data)
    assert (again.status, again.code) == (412, "PreconditionFailed")
    assert (await transport.get(target, {})).payload == b"first"
    nowhere = await transport.put("/nowhere/k", checksum(data), data)
    assert (nowhere.status, nowhere.code) == (404, "NoSuchBucket")


async def check_parts(transport: Transport, client: RawClient, sizes: Sequence[int]) -> None:
    """An upload of parts of these sizes, read back part by part and whole."""
    began = await client.ask("POST", "/train/parted?uploads")
    upload = began.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    digests, etags, md5s = [], [], b""
    all_of_it = hashlib.sha256()
    for number, size in enumerate(sizes, start=1):
        part = os.urandom(size)
        target = f"/train/parted?partNumber={number}&uploadId={upload}"
        stored = await transport.put(target, checksum(part), part)
        assert stored.status == 200, stored.code
        etags.append(stored.headers["etag"])
        digests.append(sha256(part))
        all_of_it.update(part)
        md5s += hashlib.md5(part).digest()
    rows = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        for number, etag in enumerate(etags, start=1)
    )
    document = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
    done = await client.ask("POST", f"/train/parted?uploadId={upload}", body=document)
    assert done.status == 200, done.body
    for number, (size, digest) in enumerate(zip(sizes, digests, strict=True), start=1):
        found = await transport.get(f"/train/parted?partNumber={number}", {})
        assert (found.status, len(found.payload)) == (206, size)
        assert sha256(found.payload) == digest
        assert found.headers["etag"] == f'"{hashlib.md5(md5s).hexdigest()}-{len(sizes)}"'
    if len(sizes) > 1:
        whole = await transport.get("/train/parted", {})
        assert (whole.status, sha256(whole.payload)) == (200, all_of_it.hexdigest())


async def check_batch(transport: Transport, client: RawClient, sizes: Sequence[int]) -> None:
    """Objects of these sizes in the order asked, with what cannot be had in its place."""
    objects = {f"b{size}": os.urandom(size) for size in sizes}
    for key, data in objects.items():
        await store(client, f"/train/{key}", data)
    asked: list[dict[str, str]] = [{"key": key} for key in reversed(objects)]
    last, tail = asked[0]["key"], {"range": "bytes=-6"}
    asked += [{"key": "none"}, {"key": last, **tail}, {"key": "b1"}]
    found = await transport.batch("train", asked)
    wanted = [(200, objects[key]) for key in reversed(objects)]
    wanted += [(404, b""), (206, objects[last][-6:]), (200, objects["b1"])]
    assert [(status, sha256(data)) for status, data in found] == [
        (status, sha256(data)) for status, data in wanted
    ]


async def store(client: RawClient, target: str, data: bytes) -> None:
    """An object, over HTTP."""
    reply = await client.ask("PUT", target, body=data)
    assert reply.status == 200, reply.body


def _bytes(outcome: bytes | FeedrackError) -> bytes:
    return outcome if isinstance(outcome, bytes) else b""


def _outcome(reply: Reply, payload: bytes) -> Outcome:
    assert TOKEN_HEADER not in reply.headers
    return Outcome(reply.status, reply.code, payload, reply.headers)
