"""One request whose payload moves by RDMA, and what is counted of all of them."""

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from feedrack.client import TROUBLE, Answer, Streamed, refusal, said_of
from feedrack.client import Client as HttpClient
from feedrack.errors import FeedrackError, WrongMemory
from feedrack.rdma.link import Lease, Link
from feedrack.rdma.memory import Memory
from feedrack.rdma.opening import Cause, NoRdma
from feedrack.signing import Query
from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import (
    DECLINED,
    FALLBACK_HEADER,
    REPLY_HEADER,
    TRANSFERRED_HEADER,
    FallbackReason,
)

log = logging.getLogger("feedrack.rdma")

UNSIGNED = "UNSIGNED-PAYLOAD"
# Nothing of an answer comes before all is moved. Slower than that is as good as stuck.
_SLOWEST_BYTES_A_SECOND = 16 * 1024**2
_BYTES_NEEDED = re.compile(rb"<BytesNeeded>([0-9]{1,20})</BytesNeeded>")


class Counts(NamedTuple):
    """What a client did: transfers and their bytes, and requests that went over HTTP by reason."""

    transfers: int
    bytes: int
    fallbacks: dict[FallbackReason, int]


class Moved(NamedTuple):
    """An answer that is no error. `size_bytes`: how many moved by RDMA, None where the body that
    follows has them."""

    streamed: Streamed
    size_bytes: int | None


class TransferOff(Exception):  # noqa: N818 - never leaves a request
    """An answer tells of other bytes than were asked for."""


class Mover:
    """Requests by RDMA of one client, and their counts. `quiet`: reasons that are no surprise."""

    def __init__(
        self, http: HttpClient, link: Link, *, quiet: frozenset[FallbackReason] = frozenset()
    ) -> None:
        self.http = http
        self.link = link
        self._quiet = quiet
        self.forked()

    def forked(self) -> None:
        """Begins to count anew, in a child."""
        self._lock = threading.Lock()
        self._transfers = self._bytes = 0
        self._fallbacks: dict[FallbackReason, int] = {}

    @property
    def counts(self) -> Counts:
        """Of this process, until now."""
        with self._lock:
            return Counts(self._transfers, self._bytes, dict(self._fallbacks))

    def fall_back(self, trouble: NoRdma) -> dict[str, str]:
        """Counts a request that goes over HTTP; the header that tells the gateway."""
        reason = trouble.reason
        with self._lock:
            first = reason not in self._fallbacks
            self._fallbacks[reason] = self._fallbacks.get(reason, 0) + 1
        if first and reason not in self._quiet:
            log.warning("over HTTP instead of RDMA (%s): %s", reason, str(trouble))
        return {FALLBACK_HEADER: reason}

    @contextmanager
    def ask(
        self,
        method: str,
        key: str | None,
        memory: Memory,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        sha256: str | None = None,
    ) -> Iterator[Moved]:
        """One request with a token for `memory`, once. Where the answer is declined, its body
        follows. TransferOff, raised inside, is a failed transfer. Its beginning is waited for as
        long as for any answer, and a second more for every 16 MiB of the memory.

        Raises NoRdma where it is to be asked again over HTTP, with the memory the caller's own; the
        errors of `feedrack.client.refusal`; WrongMemory where it is too small."""
        lease = self.link.lease(memory)
        try:
            with self._ask(lease, method, key, memory, query, headers, body, sha256) as moved:
                yield moved
        finally:
            self.link.give_back(lease)

    @contextmanager
    def _ask(
        self,
        lease: Lease,
        method: str,
        key: str | None,
        memory: Memory,
        query: Query,
        headers: Mapping[str, str] | None,
        body: bytes,
        sha256: str | None,
    ) -> Iterator[Moved]:
        told = {**(headers or {}), TOKEN_HEADER: lease.token}
        refused: Answer | None = None
        moved = 0
        # Until it is known how it ended, the gateway may be at the memory.
        open_ended = True
        try:
            with self.http.open(
                method,
                key,
                query,
                told,
                body,
                sha256=sha256,
                singly=True,
                more_seconds=memory.size_bytes / _SLOWEST_BYTES_A_SECOND,
            ) as streamed:
                reply = streamed.headers.get(REPLY_HEADER)
                if streamed.status >= 300:
                    refused = Answer(streamed.status, streamed.headers, streamed.body.read())
                    open_ended = not _settled(refused, lease)
                elif reply is None or reply == DECLINED:
                    self.link.declined(lease, streamed.headers)
                    open_ended = False
                    if reply is None and not _has_body(streamed):
                        # Whether it moved, somebody on the way may have kept to themselves.
                        raise NoRdma("gateway", "the answer says nothing of RDMA, and is empty")
                    yield Moved(streamed, None)
                    return
                else:
                    moved = _moved_bytes(streamed, memory)
                    yield Moved(streamed, moved)
                    # All of the answer is here; it was the last thing that the gateway did.
                    open_ended = False
        except (*TROUBLE, TransferOff) as error:
            raise NoRdma("transfer", f"{method} {key or ''} by RDMA: {error!r}") from error
        finally:
            if open_ended:
                self.link.fence(lease, Cause("transfer", "a transfer failed a moment ago"))
        if refused is not None:
            raise self._refused(refused, lease, key)
        self.link.succeeded(lease)
        with self._lock:
            self._transfers += 1
            self._bytes += moved

    def _refused(self, answer: Answer, lease: Lease, key: str | None) -> NoRdma | FeedrackError:
        """What an error means: that it goes over HTTP, or that it would go no better there."""
        said = said_of(answer)
        if answer.headers.get(REPLY_HEADER) == DECLINED:
            self.link.declined(lease, answer.headers)
            return NoRdma("gateway", f"declined: {said}")
        needed = _BYTES_NEEDED.search(answer.body)
        if needed is not None:
            return WrongMemory(f"{int(needed[1])} bytes do not fit", key=key)
        if answer.status >= 500 or said.startswith("InvalidRDMAToken"):
            return NoRdma("transfer", f"{answer.status} {said}")
        return refusal(answer, self.http.endpoint.bucket, key)


def _settled(answer: Answer, lease: Lease) -> bool:
    """Whether the session's own gateway says that it took the token and is through with the memory.

    It does not where its own end broke, where it never looked at the token, or where the token was
    used before: then it went out twice, and the first may be at work. What a proxy says, or another
    node, tells nothing of the memory.
    """
    return lease.session.is_own(answer.headers) and REPLY_HEADER in answer.headers


def _has_body(streamed: Streamed) -> bool:
    """Whether there is one for sure; an object may be empty."""
    length = streamed.headers.get("content-length", "")
    if "transfer-encoding" in streamed.headers:
        return True
    return length.isascii() and length.isdigit() and int(length) > 0


def _moved_bytes(streamed: Streamed, memory: Memory) -> int:
    headers = streamed.headers
    told = headers.get(TRANSFERRED_HEADER, "")
    if headers[REPLY_HEADER] not in ("200", "206") or not (told.isascii() and told.isdigit()):
        raise TransferOff("the answer does not say what was moved")
    if int(told) > memory.size_bytes:
        raise TransferOff(f"{told} bytes in memory of {memory.size_bytes}")
    return int(told)
