"""What is told of each request: in its answer, in the metrics, in the log."""

import secrets
import time
from collections.abc import Mapping

import structlog
from msgspec import Struct

from gateway.s3.answer import Answer
from gateway.s3.operation import Operation
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger()

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


class Recorder:
    """Opens a record for every request, and tells of it once it is over."""

    def __init__(self, node: str, metrics: Metrics) -> None:
        self.node = node
        self._metrics = metrics

    def begin(self) -> Record:
        return Record(secrets.token_hex(8).upper(), time.perf_counter())

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
        answer.headers = headers
        return answer

    def tell(self, record: Record, *, remote: str, received_bytes: int, sent_bytes: int) -> None:
        seconds = time.perf_counter() - record.began
        operation = record.operation
        metrics = self._metrics
        code = "broken" if record.broken is not None else str(record.status)
        metrics.requests.labels(operation.name, code, record.tenant).inc()
        metrics.request_seconds.labels(operation.name, record.tier or "none").observe(seconds)
        for tier, size_bytes in record.served.items():
            metrics.read_bytes.labels(tier).inc(size_bytes)
        log.info(
            "request",
            operation=operation.name,
            bucket=operation.bucket,
            key=operation.key,
            status=record.status,
            code=record.code,
            tenant=record.tenant,
            bytes_in=received_bytes,
            bytes_out=sent_bytes,
            tier=record.tier,
            seconds=round(seconds, 6),
            request_id=record.request_id,
            remote=remote,
            **({} if record.broken is None else {"broken": record.broken}),
        )
