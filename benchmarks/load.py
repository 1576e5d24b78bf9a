"""The load generator: one thread, one epoll, HTTP/1.1 over connections that stay open.

`run` does one job. As a program it reads jobs from standard input and writes outcomes to standard
output, a JSON line each, so that it has a process of its own and its CPU is not the server's.

It is strict: an answer counts only with a status of 2xx, a Content-Length as expected, and exactly
that many bytes; of every `sample_every`-th body the SHA-256 is compared, after the clock has
stopped. Everything else is a failure.
"""

import mmap
import random
import re
import select
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from hashlib import sha256

import msgspec

from benchmarks import objects
from benchmarks.jobs import Job, Outcome, latency
from benchmarks.signed import Request, prepare

_RECEIVE_BYTES = 1024**2
_HEAD_LIMIT_BYTES = 16_384
# Bodies held for hashing, in all; what would go beyond is not sampled.
_KEPT_LIMIT_BYTES = 512 * 1024**2
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_TIER = re.compile(rb"\r\nx-feedrack-tier:[ \t]*(\w+)", re.IGNORECASE)


class WrongAnswerError(Exception):
    """An answer that is not what it must be."""


class _Connection:
    """One request at a time: what is still to be sent, and what is still to come."""

    __slots__ = ("blocked", "head", "kept", "left_bytes", "out", "request", "sock", "started_ns")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.out: deque[memoryview] = deque()
        self.blocked = False
        self.head = b""
        self.left_bytes = -1
        self.request: Request | None = None
        self.started_ns = 0
        self.kept: mmap.mmap | None = None


class _Load:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.epoll = select.epoll()
        self.connections: dict[int, _Connection] = {}
        self.idle: deque[_Connection] = deque()
        self.buffer = memoryview(mmap.mmap(-1, _RECEIVE_BYTES))
        self.queue = _order(prepare(job), job.limit, endless=job.seconds is not None)
        self.latencies_ns: list[int] = []
        self.kept: list[tuple[mmap.mmap, int]] = []
        self.kept_bytes = 0
        self.tiers: Counter[str] = Counter()
        self.sent = self.failures = self.body_bytes = 0
        self.first_failure: str | None = None
        self.answer_bytes = job.size_bytes if job.method == "GET" else None

    def run(self) -> Outcome:
        for _ in range(self.job.connections):
            self._connect()
        cpu = time.process_time()
        started_ns = time.perf_counter_ns()
        if self.job.rate is None:
            self._closed_loop(started_ns)
        else:
            self._open_loop(started_ns, self.job.rate)
        seconds = (time.perf_counter_ns() - started_ns) / 1e9
        cpu = time.process_time() - cpu
        for connection in self.connections.values():
            connection.sock.close()
        self.epoll.close()
        wrong_bodies = 0
        for body, number in self.kept:
            if sha256(body).hexdigest() != objects.sha256_hex(number, self.job.size_bytes):
                self._fail(f"object {number}: the body's SHA-256 is wrong")
                wrong_bodies += 1
        return Outcome(
            requests=len(self.latencies_ns) - wrong_bodies,
            failures=self.failures,
            first_failure=self.first_failure,
            body_bytes=self.body_bytes,
            seconds=seconds,
            latency=latency(self.latencies_ns),
            hashed=len(self.kept),
            tiers=dict(self.tiers),
            client_cpu_seconds=cpu,
        )

    def _closed_loop(self, started_ns: int) -> None:
        """Every connection asks again as soon as it has its answer."""
        until_ns = self._until_ns(started_ns)
        while True:
            now_ns = time.perf_counter_ns()
            while self.idle:
                request = next(self.queue, None) if now_ns < until_ns else None
                if request is None:
                    break
                self._start(self.idle.popleft(), request, time.perf_counter_ns())
            if len(self.idle) == len(self.connections):
                return
            self._poll(self.job.timeout_seconds)

    def _open_loop(self, started_ns: int, rate: float) -> None:
        """Requests are sent when due. It spins: epoll's millisecond would show in the figures."""
        until_ns = self._until_ns(started_ns)
        interval_ns = 1e9 / rate
        number = 0
        while True:
            due_ns = started_ns + int(number * interval_ns)
            now_ns = time.perf_counter_ns()
            if due_ns > until_ns:
                break
            if now_ns >= due_ns and self.idle:
                request = next(self.queue, None)
                if request is None:
                    break
                self._start(self.idle.popleft(), request, due_ns)
                number += 1
            else:
                self._poll(0.0)
        while len(self.idle) < len(self.connections):
            self._poll(self.job.timeout_seconds)

    def _until_ns(self, started_ns: int) -> int:
        seconds = self.job.seconds if self.job.seconds is not None else 86_400
        return started_ns + int(seconds * 1e9)

    def _connect(self) -> None:
        sock = socket.create_connection((self.job.host, self.job.port), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        connection = _Connection(sock)
        self.connections[sock.fileno()] = connection
        self.epoll.register(sock.fileno(), select.EPOLLIN)
        self.idle.append(connection)

    def _start(self, connection: _Connection, request: Request, started_ns: int) -> None:
        sampled = self.sent % self.job.sample_every == 0
        self.sent += 1
        if (
            sampled
            and self.answer_bytes
            and self.kept_bytes + self.answer_bytes <= _KEPT_LIMIT_BYTES
        ):
            connection.kept = mmap.mmap(-1, self.answer_bytes)
            self.kept_bytes += self.answer_bytes
        connection.request = request
        connection.started_ns = started_ns
        connection.out.append(memoryview(request.head))
        if request.body:
            connection.out.append(memoryview(request.body))
        self._send(connection)

    def _poll(self, timeout_seconds: float) -> None:
        events = self.epoll.poll(timeout_seconds)
        if not events and timeout_seconds:
            for connection in [*self.connections.values()]:
                if connection.request is not None:
                    self._drop(connection, f"no answer within {timeout_seconds:.0f} s")
        for descriptor, event in events:
            found = self.connections.get(descriptor)
            if found is None:
                continue
            try:
                if event & select.EPOLLOUT:
                    self._send(found)
                if event & ~select.EPOLLOUT:
                    self._receive(found)
            except (WrongAnswerError, OSError) as error:
                self._drop(found, str(error))

    def _send(self, connection: _Connection) -> None:
        waiting = connection.out
        try:
            while waiting:
                sent = connection.sock.sendmsg(waiting)
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if waiting:
                    waiting[0] = waiting[0][sent:]
        except BlockingIOError:
            if not connection.blocked:
                connection.blocked = True
                self.epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            return
        if connection.blocked:
            connection.blocked = False
            self.epoll.modify(connection.sock.fileno(), select.EPOLLIN)

    def _receive(self, connection: _Connection) -> None:
        request = connection.request
        left_bytes = connection.left_bytes
        if left_bytes > 0 and connection.kept is not None and self.answer_bytes is not None:
            start = self.answer_bytes - left_bytes
            with memoryview(connection.kept) as kept:
                received = connection.sock.recv_into(kept[start:])
            if not received:
                raise WrongAnswerError("closed in the middle of an answer")
        else:
            received = connection.sock.recv_into(self.buffer)
            if not received:
                raise WrongAnswerError("closed instead of an answer")
            if request is None:
                raise WrongAnswerError("bytes that nobody asked for")
            if left_bytes < 0:
                received = self._receive_head(connection, received)
                left_bytes = connection.left_bytes
                if left_bytes < 0:
                    return
        if received > left_bytes:
            raise WrongAnswerError("more bytes than the answer announced")
        connection.left_bytes = left_bytes - received
        if received == left_bytes:
            self._finish(connection)

    def _receive_head(self, connection: _Connection, received: int) -> int:
        """Reads the head out of the buffer; the count of body bytes that came along with it."""
        before = len(connection.head)
        connection.head += self.buffer[: min(received, _HEAD_LIMIT_BYTES)]
        end = connection.head.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(connection.head) >= _HEAD_LIMIT_BYTES:
                raise WrongAnswerError("an endless head")
            return 0
        head, connection.head = connection.head[:end], b""
        if head[9:10] != b"2":
            line = head[: head.find(b"\r")].decode("latin-1")
            text = bytes(self.buffer[end - before : received])[:300].decode("latin-1")
            raise WrongAnswerError(f"{line} {text}")
        length = _LENGTH.search(head)
        if length is None:
            # RFC 9112 6.3: a 204 has no body and no length.
            connection.left_bytes = 0 if head[9:12] == b"204" else -1
        else:
            connection.left_bytes = int(length[1])
        wanted = self.answer_bytes
        if connection.left_bytes < 0 or (wanted is not None and connection.left_bytes != wanted):
            raise WrongAnswerError(f"a length of {connection.left_bytes} bytes instead of {wanted}")
        tier = _TIER.search(head)
        if tier is not None:
            self.tiers[tier[1].decode()] += 1
        start = end - before
        if connection.kept is not None:
            connection.kept[: received - start] = bytes(self.buffer[start:received])
        return received - start

    def _finish(self, connection: _Connection) -> None:
        assert connection.request is not None
        self.latencies_ns.append(time.perf_counter_ns() - connection.started_ns)
        self.body_bytes += self.job.size_bytes
        if connection.kept is not None:
            self.kept.append((connection.kept, connection.request.number))
            connection.kept = None
        connection.request = None
        connection.left_bytes = -1
        self.idle.append(connection)

    def _drop(self, connection: _Connection, why: str) -> None:
        """Counts a failure and takes a new connection in place of this one."""
        self._fail(why)
        if connection.kept is not None and self.answer_bytes is not None:
            self.kept_bytes -= self.answer_bytes
        if connection in self.idle:
            self.idle.remove(connection)
        del self.connections[connection.sock.fileno()]
        connection.sock.close()
        self._connect()

    def _fail(self, why: str) -> None:
        self.failures += 1
        if self.first_failure is None:
            self.first_failure = why


def run(job: Job) -> Outcome:
    """Does the job and tells what came of it. OSError where the server cannot be reached."""
    return _Load(job).run()


def _order(requests: list[Request], limit: int | None, *, endless: bool) -> Iterator[Request]:
    shuffled = random.Random(7).sample(requests, len(requests))[:limit]
    yield from shuffled
    while endless:
        yield from shuffled


def main() -> None:
    """Jobs in, outcomes out, until the end of the input."""
    for line in sys.stdin.buffer:
        outcome = run(msgspec.json.decode(line, type=Job))
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
