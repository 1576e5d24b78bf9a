"""One connection of the load generator: a request out, its answer in, checked byte for byte.

Strict: an answer counts only with a status of 2xx, a Content-Length as expected, and exactly that
many bytes. Bodies that nobody will hash are dropped in the kernel (MSG_TRUNC, tcp(7)): that they
came is known, and the copy that they would cost is left out, so that the client is not the limit.
"""

import mmap
import re
import socket
import time
from collections import deque
from hashlib import sha256
from itertools import islice

from benchmarks import objects
from benchmarks.jobs import Job, answer_bytes
from benchmarks.signed import Request, body

_HEAD_LIMIT_BYTES = 16_384
# Enough for a head and a small body at once; what is longer is dropped without a copy.
_FIRST_BYTES = 16_384
_BUFFER_BYTES = 1024**2
# Of an error's text.
_TOLD_BYTES = 200
# Parts of a body sent at once; the kernel takes no more than 1,024.
_PARTS = 512
_BUFFER = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_TIER = re.compile(rb"\r\nx-feedrack-tier:[ \t]*(\w+)", re.IGNORECASE)


class WrongAnswerError(Exception):
    """An answer that is not what it must be."""


class Connection:
    """One request at a time: what is still to be sent, and what is still to come.

    `kept` is where the body goes that is to be hashed; `tier` what the last answer said of where
    its bytes came from; `first_byte_ns` when the first byte of its body was here.
    """

    __slots__ = (
        "_body_bytes",
        "_head",
        "_left_bytes",
        "blocked",
        "first_byte_ns",
        "job",
        "kept",
        "out",
        "request",
        "sock",
        "started_ns",
        "tier",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.sock = socket.create_connection((job.host, job.port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.out: deque[memoryview] = deque()
        self.blocked = False
        self.request: Request | None = None
        self.started_ns = self.first_byte_ns = 0
        self.kept: mmap.mmap | None = None
        self.tier: bytes | None = None
        self._body_bytes = answer_bytes(job)
        self._head = b""
        self._left_bytes = -1

    def ask(self, request: Request, started_ns: int, kept: mmap.mmap | None) -> None:
        """Sends as much as the socket takes; `blocked` tells that there is more."""
        self.request = request
        self.started_ns = started_ns
        self.first_byte_ns = 0
        self.kept = kept
        self._left_bytes = -1
        if request.method != "PUT":
            try:
                sent = self.sock.send(request.head)
            except BlockingIOError:
                sent = 0
            if sent == len(request.head):
                return
            self.out.append(memoryview(request.head)[sent:])
        else:
            self.out.append(memoryview(request.head))
            self.out.extend(memoryview(part) for part in body(request, self.job))
        self.send()

    def send(self) -> None:
        """Sends on."""
        waiting = self.out
        try:
            while waiting:
                sent = self.sock.sendmsg([*islice(waiting, _PARTS)])
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if waiting:
                    waiting[0] = waiting[0][sent:]
        except BlockingIOError:
            self.blocked = True
            return
        self.blocked = False

    def receive(self) -> bool:
        """Takes what has come; True where the answer is complete."""
        left_bytes = self._left_bytes
        if left_bytes < 0:
            received = self._receive_head()
            left_bytes = self._left_bytes
            if left_bytes < 0:
                return False
        else:
            received = self._receive_body(left_bytes)
        if received and not self.first_byte_ns:
            self.first_byte_ns = time.perf_counter_ns()
        self._left_bytes = left_bytes - received
        return received == left_bytes

    def _receive_body(self, left_bytes: int) -> int:
        if self.kept is not None:
            with memoryview(self.kept) as kept:
                received = self.sock.recv_into(kept[self._body_bytes - left_bytes :])
        else:
            limit_bytes = min(left_bytes, _BUFFER_BYTES)
            received = self.sock.recv_into(_BUFFER, limit_bytes, socket.MSG_TRUNC)
        if not received:
            raise WrongAnswerError("closed in the middle of an answer")
        return received

    def _receive_head(self) -> int:
        """The count of body bytes that came along with the head; none while it is not whole."""
        received = self.sock.recv_into(_BUFFER, _FIRST_BYTES)
        if not received:
            raise WrongAnswerError("closed instead of an answer")
        if self.request is None:
            raise WrongAnswerError("bytes that nobody asked for")
        head = self._head + _BUFFER[:received].tobytes()
        end = head.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(head) >= _HEAD_LIMIT_BYTES:
                raise WrongAnswerError("an endless head")
            self._head = head
            return 0
        self._head = b""
        self._left_bytes = self._expected_bytes(self.request, head, end)
        tier = _TIER.search(head, 0, end)
        self.tier = tier[1] if tier is not None else None
        came = len(head) - end
        if came > self._left_bytes:
            raise WrongAnswerError("more bytes than the answer announced")
        if self.kept is not None:
            self.kept[:came] = head[end:]
        return came

    def _expected_bytes(self, request: Request, head: bytes, end: int) -> int:
        """How long the body will be, by the head."""
        if head[9:10] != b"2":
            text = head[: head.find(b"\r")] + b" " + head[end : end + _TOLD_BYTES]
            raise WrongAnswerError(" ".join(text.decode("latin-1").split()))
        length = _LENGTH.search(head, 0, end)
        # RFC 9112 6.3: a 204 has no body and no length.
        without = 0 if head[9:12] == b"204" else -1
        announced = without if length is None else int(length[1])
        wanted = {"GET": self._body_bytes, "HEAD": self.job.size_bytes}.get(request.method)
        if announced < 0 or (wanted is not None and announced != wanted):
            raise WrongAnswerError(f"a length of {announced} bytes instead of {wanted}")
        return 0 if request.method == "HEAD" else announced


def is_right(kept: mmap.mmap, request: Request, job: Job) -> bool:
    """Whether a body is what it must be, by its SHA-256."""
    expected = objects.sha256_hex(request.number, request.offset, answer_bytes(job))
    return sha256(kept).hexdigest() == expected
