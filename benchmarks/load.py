"""The load generator: one thread, one epoll, HTTP/1.1 over connections that stay open.

`run` does one job. As a program it reads jobs from standard input and writes outcomes to standard
output, a JSON line each, so that it has a process of its own and its CPU is not the server's.
Requests are signed before the clock starts, and bodies hashed after it has stopped.
"""

import gc
import mmap
import random
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator

import msgspec

from benchmarks.connection import Connection, WrongAnswerError, is_right
from benchmarks.jobs import Job, Outcome, Part, answer_bytes, latency
from benchmarks.signed import Request, Seconds, prepare

# Bodies held for hashing, in all; what would go beyond is not sampled.
_KEPT_LIMIT_BYTES = 512 * 1024**2
_SECONDS = Seconds()


class _Load:
    def __init__(self, job: Job, requests: list[Request]) -> None:
        self.job = job
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.idle: deque[Connection] = deque()
        self.queue: Iterator[Request] = iter(requests)
        self.until_ns = 0
        self.done: list[tuple[Request, int, int]] = []
        self.kept: list[tuple[mmap.mmap, Request]] = []
        self.kept_bytes = 0
        self.tiers: Counter[bytes] = Counter()
        self.sent = self.failures = 0
        self.first_failure: str | None = None

    def run(self) -> Outcome:
        for _ in range(self.job.connections):
            self._connect()
        time.sleep(max(0.0, self.job.not_before - time.monotonic()))
        cpu = time.process_time()
        started_ns = time.perf_counter_ns()
        self.until_ns = started_ns + int((self.job.seconds or 86_400) * 1e9)
        if self.job.rate is None:
            self._closed_loop()
        else:
            self._open_loop(started_ns, self.job.rate)
        seconds = (time.perf_counter_ns() - started_ns) / 1e9
        cpu = time.process_time() - cpu
        for connection in self.connections.values():
            connection.sock.close()
        self.epoll.close()
        wrong_bodies = 0
        for kept, request in self.kept:
            if not is_right(kept, request, self.job):
                self._fail(f"object {request.number}: the body's SHA-256 is wrong")
                wrong_bodies += 1
        return Outcome(
            requests=len(self.done) - wrong_bodies,
            failures=self.failures,
            first_failure=self.first_failure,
            body_bytes=sum(_body_bytes(self.job, request) for request, _, _ in self.done),
            seconds=seconds,
            latency=latency([whole_ns for _, whole_ns, _ in self.done]),
            first_byte=latency([first_ns for _, _, first_ns in self.done if first_ns]),
            by_method=self._by_method(),
            hashed=len(self.kept),
            tiers={tier.decode(): count for tier, count in self.tiers.items()},
            client_busy=cpu / seconds,
        )

    def _by_method(self) -> dict[str, Part]:
        taken_ns: dict[str, list[int]] = {method: [] for method in self.job.mix}
        for request, whole_ns, _ in self.done:
            taken_ns[request.method].append(whole_ns)
        return {method: Part(len(all_ns), latency(all_ns)) for method, all_ns in taken_ns.items()}

    def _closed_loop(self) -> None:
        """Every connection asks again as soon as it has its answer."""
        while True:
            while self.idle and self._next(self.idle[0], time.perf_counter_ns()):
                self.idle.popleft()
            if len(self.idle) == len(self.connections):
                return
            self._poll(self.job.timeout_seconds, again=True)

    def _open_loop(self, started_ns: int, rate: float) -> None:
        """Requests are sent when due. It spins: epoll's millisecond would show in the figures."""
        interval_ns = 1e9 / rate
        number = 0
        while True:
            due_ns = started_ns + int(number * interval_ns)
            if due_ns >= self.until_ns:
                break
            if time.perf_counter_ns() >= due_ns and self.idle:
                if not self._next(self.idle[0], due_ns):
                    break
                self.idle.popleft()
                number += 1
            else:
                self._poll(0.0, again=False)
        while len(self.idle) < len(self.connections):
            self._poll(self.job.timeout_seconds, again=False)

    def _next(self, connection: Connection, now_ns: int) -> bool:
        """Asks for the next object; False where there is none to ask for or no time left."""
        request = next(self.queue, None) if now_ns < self.until_ns else None
        if request is None:
            return False
        kept = None
        every = self.job.sample_every
        if every and self.sent % every == 0 and request.method == "GET":
            size_bytes = answer_bytes(self.job)
            if 0 < size_bytes <= _KEPT_LIMIT_BYTES - self.kept_bytes:
                kept = mmap.mmap(-1, size_bytes)
                self.kept_bytes += size_bytes
        self.sent += 1
        connection.ask(request, now_ns, kept)
        if connection.blocked:
            self.epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def _connect(self) -> None:
        connection = Connection(self.job)
        self.connections[connection.sock.fileno()] = connection
        self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        self.idle.append(connection)

    def _poll(self, timeout_seconds: float, *, again: bool) -> None:
        """Waits for what comes; `again`: a connection that has its answer asks at once."""
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
                if event & ~select.EPOLLOUT and found.receive():
                    now_ns = self._finish(found)
                    if not (again and self._next(found, now_ns)):
                        self.idle.append(found)
            except (WrongAnswerError, OSError) as error:
                self._drop(found, str(error))

    def _send(self, connection: Connection) -> None:
        connection.send()
        if not connection.blocked:
            self.epoll.modify(connection.sock.fileno(), select.EPOLLIN)

    def _finish(self, connection: Connection) -> int:
        """Takes the answer down; the time it is."""
        now_ns = time.perf_counter_ns()
        request = connection.request
        assert request is not None
        first_ns = connection.first_byte_ns
        started_ns = connection.started_ns
        self.done.append((request, now_ns - started_ns, first_ns and first_ns - started_ns))
        if connection.tier is not None:
            self.tiers[connection.tier] += 1
        if connection.kept is not None:
            self.kept.append((connection.kept, request))
            connection.kept = None
        connection.request = None
        return now_ns

    def _drop(self, connection: Connection, why: str) -> None:
        """Counts a failure and takes a new connection in place of this one."""
        self._fail(why)
        if connection.kept is not None:
            self.kept_bytes -= answer_bytes(self.job)
        if connection in self.idle:
            self.idle.remove(connection)
        del self.connections[connection.sock.fileno()]
        connection.sock.close()
        self._connect()

    def _fail(self, why: str) -> None:
        self.failures += 1
        if self.first_failure is None:
            self.first_failure = why


def _body_bytes(job: Job, request: Request) -> int:
    if request.method == "HEAD":
        return 0
    return answer_bytes(job) if request.method == "GET" else job.size_bytes


def run(job: Job, seconds: Seconds = _SECONDS) -> Outcome:
    """Does the job and tells what came of it. OSError where the server cannot be reached."""
    load = _Load(job, prepare(job, seconds, random.Random(7)))
    # What was prepared is not looked through again and again while the clock runs.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        return load.run()
    finally:
        gc.enable()
        gc.unfreeze()


def main() -> None:
    """Jobs in, outcomes out, until the end of the input."""
    for line in sys.stdin.buffer:
        outcome = run(msgspec.json.decode(line, type=Job))
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
