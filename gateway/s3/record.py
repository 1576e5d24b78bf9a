"""What is told of each request: in its answer, in the metrics, in the log."""

import random
import secrets
import time
from collections.abc import Mapping

from msgspec import Struct

from gateway.rdma.wire import REPLY_HEADER
from gateway.s3.answer import Answer
from gateway.s3.operation import Operation
from gateway.telemetry.requests import RequestRecord, RequestReporter

# Of a request: not through packs, please; of its answer: it was not (docs/pack-format.md).
PACKS_HEADER = "x-feedrack-packs"
BYPASS = "bypass"

_UNKNOWN = Operation("Unknown")


class Record(Struct):
    """One request, as far as it has come. `began` is of `time.perf_counter`."""

    request_id: str
    began: float
    operation: Operation = _UNKNOWN
    tenant: str = "anonymous"
    status: int = 0
    code: str | None = None
    tier: str | None = None
    served: Mapping[str, int] = {}
    broken: str | None = None
    past_packs: bool = False
    # An RDMA token was taken, and nothing touches its memory any more; how much moved.
    settled: bool = False
    rdma_bytes: int | None = None


class Recorder:
    """Opens a record for every request, and tells of it once it is over."""

    def __init__(self, node: str, reporter: RequestReporter) -> None:
        self.node = node
        self._reporter = reporter
        self._draw = random.Random(secrets.randbits(64)).getrandbits  # noqa: S311

    def begin(self) -> Record:
        # An id to find a line in a log by, not a secret.
        return Record(f"{self._draw(64):016X}", time.perf_counter())

    def sign_off(self, answer: Answer, record: Record) -> Answer:
        """The answer with what every answer tells: who gave it, and to which request."""
        record.status = answer.status
        record.tier = answer.tier
        record.served = answer.served
        headers = {
            **answer.headers,
            "server": "feedrack",
            "x-amz-request-id": record.request_id,
            "x-feedrack-node": self.node,
        }
        if answer.tier is not None:
            headers["x-feedrack-tier"] = answer.tier
        if record.past_packs:
            headers[PACKS_HEADER] = BYPASS
        if record.settled:
            headers[REPLY_HEADER] = str(answer.status)
        answer.headers = headers
        return answer

    def tell(self, record: Record, *, remote: str, received_bytes: int, sent_bytes: int) -> None:
        """Counts the request and logs it, once it is over."""
        operation = record.operation
        self._reporter.tell(
            RequestRecord(
                operation.name,
                operation.bucket,
                operation.key,
                record.status,
                record.code,
                record.tenant,
                received_bytes,
                sent_bytes,
                record.tier,
                time.perf_counter() - record.began,
                record.request_id,
                remote,
                record.broken,
                record.served,
                record.rdma_bytes,
            )
        )
