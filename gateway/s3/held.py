"""The fast lane's endpoint: plain reads of what this node holds, in one step of the event loop.

The same parts as the long way's (`Entry`, `get_object`, `HeldReads`, `Recorder`), without anything
to wait for between them. It answers only what goes well: whatever is refused, missing or
elsewhere is left, as it came, to the long way, which finds the same and has the words for it.
"""

import asyncio

import structlog
from msgspec import Struct, field

from gateway.auth.request import RequestHead
from gateway.errors import S3Error
from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import FALLBACK_HEADER
from gateway.s3.answer import Answer
from gateway.s3.call import ClientGoneError
from gateway.s3.entry import Entry
from gateway.s3.get_object import answer_held
from gateway.s3.record import Record, Recorder
from gateway.s3.relay import relayed
from gateway.s3.sending import Sending, Wire
from gateway.store.held import HeldReads
from gateway.store.reading import ReadAnswer
from gateway.telemetry.metrics import Metrics
from gateway.tiers.protocol import FileRegion

log = structlog.get_logger()

_READS = frozenset(("GetObject", "HeadObject"))
_RDMA_HEADERS = frozenset((TOKEN_HEADER, FALLBACK_HEADER))


class HeldAnswer(Struct):
    """An answer that can begin at once, and the record of its request."""

    answer: Answer
    read: ReadAnswer
    record: Record
    remote: str
    # All the bytes that follow the head, where they are at hand, or in a file.
    whole: bytes | bytearray | memoryview | FileRegion | None
    # What of a file the client had no room for yet, with what is left of the head.
    rest: tuple[bytes, FileRegion] | None = None
    sending: Sending = field(default_factory=Sending)


class HeldEndpoint:
    """Answers plain reads of what is held."""

    def __init__(self, entry: Entry, held: HeldReads, recorder: Recorder, metrics: Metrics) -> None:
        self._entry = entry
        self._held = held
        self._recorder = recorder
        self._metrics = metrics

    def answer(
        self, head: RequestHead, *, remote: str, secure: bool, files: bool
    ) -> HeldAnswer | None:
        """The answer to a plain read; None where the long way has to look. `files`: the wire can
        send from files. `send_now`, and where that says so `send`, must follow."""
        record = self._recorder.begin()
        try:
            request = self._entry.admit(head, record, secure=secure)
            if request.past_packs or request.operation.name not in _READS:
                return None
            if not _RDMA_HEADERS.isdisjoint(request.head.fields):
                return None
            if relayed(request) is not None:
                return None
            found = answer_held(request, self._held, files=files)
        except S3Error:
            return None
        except Exception:
            # Whatever it is, the long way meets it too, and answers for it.
            log.exception("a plain read could not be answered at once", key=record.operation.key)
            return None
        if found is None:
            return None
        answer, read = found
        whole = b"" if answer.stream is None else read.whole
        return HeldAnswer(answer, read, record, remote, whole)

    def send_now(self, held: HeldAnswer, wire: Wire, *, connection: str) -> bool:
        """Sends an answer whose bytes are at hand, and tells of it. False where something of it is
        still to come: `send` goes on. Raises as `send`."""
        whole = held.whole
        if whole is None:
            return False
        answer = self._recorder.sign_off(held.answer, held.record)
        try:
            if isinstance(whole, FileRegion):
                held.rest = held.sending.send_file_now(wire, answer, whole, connection=connection)
                if held.rest is not None:
                    return False
            else:
                held.sending.send_whole(
                    wire, answer, whole, head_only=answer.stream is None, connection=connection
                )
        except Exception as error:
            held.record.broken = _broken(error)
            held.read.release()
            self._tell(held)
            raise
        held.read.release()
        self._tell(held)
        return True

    async def send(self, held: HeldAnswer, wire: Wire, *, connection: str) -> bool:
        """Sends an answer as its bytes come, and tells of it. False where nothing was sent, and
        the long way can still answer. ClientGoneError and any failure midway end the connection:
        the caller's to break, after which the client sees that the answer is not complete."""
        sending = held.sending
        record = held.record
        self._metrics.requests_in_flight.inc()
        told = True
        try:
            if held.rest is not None:
                await sending.send_rest(wire, *held.rest)
            else:
                await held.read.begin(files=wire.sends_files)
                held.answer.tier = held.read.tier
                answer = self._recorder.sign_off(held.answer, record)
                await sending.send_stream(wire, answer, connection=connection, chunks=True)
        except asyncio.CancelledError:
            record.broken = "stopped"
            raise
        except ClientGoneError as error:
            record.broken = _broken(error)
            raise
        except Exception as error:
            if not sending.begun:
                told = False
                return False
            record.broken = _broken(error)
            raise
        finally:
            await held.read.close()
            self._metrics.requests_in_flight.dec()
            if told:
                self._tell(held)
        return True

    def _tell(self, held: HeldAnswer) -> None:
        self._recorder.tell(
            held.record, remote=held.remote, received_bytes=0, sent_bytes=held.sending.sent_bytes
        )


def _broken(error: Exception) -> str:
    if isinstance(error, ClientGoneError):
        return "client gone"
    return f"{type(error).__name__}: {error}"
