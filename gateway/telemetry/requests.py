"""What is told of every request: counted in the metrics, and one line in the log.

This runs once for every request, so the children of the metrics are remembered by their labels (as
many as there are operations, codes, tenants and tiers), and the line is made without structlog: the
same keys and values, in the same order, as `log.info("request", ...)` would write.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from gateway.config import LogConfig
from gateway.telemetry.lines import LineWriter, standard_error
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger()


class RequestRecord(Struct):
    """One request as it is told afterwards.

    `bytes_in` and `bytes_out` are the bodies'; `served` is the bytes of an object sent, by tier;
    `seconds` the time from the head to the answer's last byte; `broken` says why an answer that
    had begun did not end; `rdma_bytes` are those that moved by RDMA, and are in no body.
    """

    operation: str = "Unknown"
    bucket: str = ""
    key: str = ""
    status: int = 0
    code: str | None = None
    tenant: str = "anonymous"
    bytes_in: int = 0
    bytes_out: int = 0
    tier: str | None = None
    seconds: float = 0.0
    request_id: str = ""
    remote: str = ""
    broken: str | None = None
    served: Mapping[str, int] = {}
    rdma_bytes: int | None = None


class _Line(Struct, gc=False):
    """A line's fields in their order; event, level and timestamp follow."""

    operation: str
    bucket: str
    key: str
    status: int
    code: str | None
    tenant: str
    bytes_in: int
    bytes_out: int
    tier: str | None
    seconds: float
    request_id: str
    remote: str
    broken: str | UnsetType
    rdma_bytes: int | UnsetType


class RequestReporter:
    """Tells of requests in `metrics` and, as `config` has it, in the log. Never raises."""

    def __init__(
        self, metrics: Metrics, config: LogConfig, lines: LineWriter | None = None
    ) -> None:
        self._metrics = metrics
        self._counted: dict[
            tuple[str, int | None, str, str | None],
            tuple[Callable[[], None], Callable[[float], None]],
        ] = {}
        self._read: dict[str, Callable[[int], None]] = {}
        wanted = logging.getLevelNamesMapping()[config.level.upper()] <= logging.INFO
        self._logs_json = wanted and config.format == "json"
        self._logs_plain = wanted and config.format != "json"
        self._add = (lines or standard_error()).add
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._end = b""

    def tell(self, record: RequestRecord) -> None:
        """Counts the request and logs it."""
        self._count(record)
        if self._logs_json:
            self._add(self._line(record))
        elif self._logs_plain:
            log.info("request", **_fields(_line(record)))

    def _count(self, record: RequestRecord) -> None:
        status = record.status if record.broken is None else None
        labels = (record.operation, status, record.tenant, record.tier)
        try:
            count, observe = self._counted[labels]
        except KeyError:
            count, observe = self._counted[labels] = self._children(*labels)
        count()
        observe(record.seconds)
        for tier, size_bytes in record.served.items():
            try:
                read = self._read[tier]
            except KeyError:
                read = self._read[tier] = self._metrics.read_bytes.labels(tier).inc
            read(size_bytes)

    def _children(
        self, operation: str, status: int | None, tenant: str, tier: str | None
    ) -> tuple[Callable[[], None], Callable[[float], None]]:
        code = "broken" if status is None else str(status)
        return (
            self._metrics.requests.labels(operation, code, tenant).inc,
            self._metrics.request_seconds.labels(operation, tier or "none").observe,
        )

    def _line(self, record: RequestRecord) -> bytes:
        second, microsecond = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:
            day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._end = f',"event":"request","level":"info","timestamp":"{day}.%06dZ"}}\n'.encode()
            self._second = second
        line = _line(record)
        try:
            told = self._encode(line)
        except UnicodeEncodeError:
            # A name with a lone surrogate, as a folder may hold it: JSON can only escape it.
            told = json.dumps(_fields(line)).encode("ascii")
        return told[:-1] + self._end % microsecond


def _line(record: RequestRecord) -> _Line:
    return _Line(
        record.operation,
        record.bucket,
        record.key,
        record.status,
        record.code,
        record.tenant,
        record.bytes_in,
        record.bytes_out,
        record.tier,
        round(record.seconds, 6),
        record.request_id,
        record.remote,
        UNSET if record.broken is None else record.broken,
        UNSET if record.rdma_bytes is None else record.rdma_bytes,
    )


def _fields(line: _Line) -> dict[str, str | int | float | None]:
    found = msgspec.structs.asdict(line)
    return {name: value for name, value in found.items() if value is not UNSET}
