"""An S3 origin that fails on demand: an HTTP proxy before a real one.

It counts what passes, and breaks what it was told to break: in order, or at random from a seed.
It runs in a thread with a loop of its own, so that tests of any kind and other processes can use
it.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Kind = Literal[
    "status", "reset", "reset_upload", "stall", "stall_upload", "truncate", "lose", "wrong_length",
    "delay", "etag",
]  # fmt: skip
_HEAD_END = b"\r\n\r\n"
_BLOCK_BYTES = 65_536


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    status: answers `status` without asking the origin;
    reset: cuts the connection after `after_bytes` of the answer's body, or, where that is None,
    before the origin is asked; truncate: the same, but closed in good order;
    lose: cuts the connection in place of the answer: the origin has done what it was asked for;
    stall: sends nothing after `after_bytes`, or never answers;
    reset_upload, stall_upload: cuts the connection, or takes no more, after `after_bytes` of the
    request's body;
    wrong_length: announces `after_bytes` more than there are, then closes;
    delay: waits `seconds` before it asks; etag: answers with an ETag that was not asked for.
    `operation` None means any.
    """

    kind: Kind
    operation: str | None = None
    status: int = 503
    after_bytes: int | None = None
    seconds: float = 0.0


@dataclass
class Seen:
    """What has passed, by operation."""

    requests: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    heads: list[bytes] = field(default_factory=list)


class FlakyOrigin:
    """A proxy at `url` before the origin at `upstream_url`."""

    def __init__(self, upstream_url: str, *, seed: int = 0, host: str = "127.0.0.1") -> None:
        upstream = urlsplit(upstream_url)
        self._host = host
        assert upstream.hostname is not None
        assert upstream.port is not None
        self._upstream = (upstream.hostname, upstream.port)
        self._faults: deque[Fault] = deque()
        self._random = random.Random(seed)
        self._share = 0.0
        self._random_faults: Sequence[Fault] = ()
        self._lock = threading.Lock()
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = Seen()
        self.url = ""

    def fail(self, fault: Fault, times: int = 1) -> None:
        """The next `times` matching requests meet this fault."""
        with self._lock:
            self._faults.extend([fault] * times)

    def fail_at_random(self, share: float, faults: Sequence[Fault]) -> None:
        """Every request meets one of `faults` with a probability of `share`."""
        with self._lock:
            self._share, self._random_faults = share, faults

    def heal(self) -> None:
        """No more faults, and an end to the connections that are stalled."""
        with self._lock:
            self._faults.clear()
            self._share = 0.0
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def serve(self, ready: "threading.Event", stop: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._accept, self._host, 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        ready.set()
        await stop.wait()
        server.close()
        self._released.set()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may be used again."""
        head = await reader.readuntil(_HEAD_END)
        operation = operation_of(head)
        self.seen.requests[operation] += 1
        self.seen.heads.append(head)
        fault = self._next_fault(operation)
        if fault is not None and fault.kind == "status":
            body = b"<Error><Code>SlowDown</Code><Message>told to</Message></Error>"
            answer = f"HTTP/1.1 {fault.status} Told To\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"{answer}connection: close\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
            return False
        if fault is not None and fault.kind == "stall" and fault.after_bytes is None:
            await self._released.wait()
            return False
        if fault is not None and fault.kind in ("reset", "truncate") and fault.after_bytes is None:
            if fault.kind == "reset":
                writer.transport.abort()
            return False
        if fault is not None and fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        if header(head, "expect") is not None:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        origin_reader, origin_writer = await asyncio.open_connection(*self._upstream)
        try:
            origin_writer.write(_rewritten(head))
            taken_before = self.seen.received_bytes[operation]
            async for block in _body(head, reader):
                self.seen.received_bytes[operation] += len(block)
                if fault is not None and fault.kind.endswith("_upload"):
                    taken = self.seen.received_bytes[operation] - taken_before
                    if taken > (fault.after_bytes or 0):
                        await self._break_upload(fault, writer)
                        return False
                origin_writer.write(block)
                await origin_writer.drain()
            return await self._answer(operation, fault, head, origin_reader, writer)
        finally:
            origin_writer.close()

    async def _answer(
        self,
        operation: str,
        fault: Fault | None,
        request_head: bytes,
        origin_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        head = await origin_reader.readuntil(_HEAD_END)
        while head.startswith(b"HTTP/1.1 100"):
            head = await origin_reader.readuntil(_HEAD_END)
        length = int(header(head, "content-length") or "0")
        if fault is not None and fault.kind == "lose":
            writer.transport.abort()
            return False
        if fault is not None and fault.kind == "wrong_length":
            head = _with_header(head, "Content-Length", str(length + (fault.after_bytes or 1)))
        if fault is not None and fault.kind == "etag":
            head = _with_header(head, "ETag", f'"{self._random.randbytes(16).hex()}"')
        writer.write(_with_header(head, "Connection", "close"))
        if request_head.startswith(b"HEAD "):
            await writer.drain()
            return False
        broken = fault is not None and fault.kind in ("reset", "truncate", "stall")
        left = length
        if fault is not None and broken:
            left = min(left, fault.after_bytes or 0)
        while left and (block := await origin_reader.read(min(left, _BLOCK_BYTES))):
            left -= len(block)
            self.seen.sent_bytes[operation] += len(block)
            writer.write(block)
            await writer.drain()
        if fault is not None and fault.kind == "stall":
            await self._released.wait()
        if fault is not None and fault.kind == "reset":
            writer.transport.abort()
        return False

    async def _break_upload(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        if fault.kind == "stall_upload":
            await self._released.wait()
        else:
            writer.transport.abort()

    def _next_fault(self, operation: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.operation in (None, operation):
                    self._faults.remove(fault)
                    return fault
            if self._share and self._random.random() < self._share:
                return self._random.choice(self._random_faults)
        return None


@contextmanager
def flaky_origin(
    upstream_url: str,
    *,
    seed: int = 0,
    host: str = "127.0.0.1",
    enter: Callable[[], None] = lambda: None,
) -> Iterator[FlakyOrigin]:
    """A running FlakyOrigin at `host`, stopped at the end. `enter` is called first, in its
    thread."""
    flaky = FlakyOrigin(upstream_url, seed=seed, host=host)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        enter()
        loop.run_until_complete(flaky.serve(ready, stop))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert ready.wait(timeout=60)
        yield flaky
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=60)
        loop.close()


def operation_of(head: bytes) -> str:
    """The S3 operation that a request's head asks for, path-style."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    parts = urlsplit(target)
    bucket, _, key = parts.path.lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    copies = header(head, "x-amz-copy-source") is not None
    if key:
        if "uploadId" in query:
            part = "UploadPartCopy" if copies else "UploadPart"
            return {
                "PUT": part,
                "POST": "CompleteMultipartUpload",
                "DELETE": "AbortMultipartUpload",
                "GET": "ListParts",
            }[method]
        if "uploads" in query:
            return "CreateMultipartUpload"
        if "tagging" in query:
            return f"{method.title()}ObjectTagging"
        if copies:
            return "CopyObject"
        return f"{method.title()}Object"
    if not bucket:
        return "ListBuckets"
    if "list-type" in query:
        return "ListObjectsV2"
    if "versions" in query:
        return "ListObjectVersions"
    if "uploads" in query:
        return "ListMultipartUploads"
    if "delete" in query:
        return "DeleteObjects"
    if "tagging" in query:
        return f"{method.title()}BucketTagging"
    return {"PUT": "CreateBucket", "GET": "ListObjects"}.get(method, f"{method.title()}Bucket")


def header(head: bytes, name: str) -> str | None:
    """The value of a header in a request's or an answer's head."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.decode("latin-1").lower() == name:
            return value.decode("latin-1").strip()
    return None


def _with_header(head: bytes, name: str, value: str) -> bytes:
    """The head with that header in place of its own."""
    start, *lines = head.removesuffix(_HEAD_END).split(b"\r\n")
    kept = [
        line for line in lines if line.partition(b":")[0].decode("latin-1").lower() != name.lower()
    ]
    return b"\r\n".join([start, *kept, f"{name}: {value}".encode()]) + _HEAD_END


def _rewritten(head: bytes) -> bytes:
    """A request as it goes to the origin: one per connection, without waiting for a 100."""
    start, *lines = head.removesuffix(_HEAD_END).split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"expect:", b"connection:"))]
    return b"\r\n".join([start, *kept, b"Connection: close"]) + _HEAD_END


async def _body(head: bytes, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A request's body as it came."""
    left = int(header(head, "content-length") or "0")
    while left:
        block = await reader.read(min(left, _BLOCK_BYTES))
        if not block:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(block)
        yield block
