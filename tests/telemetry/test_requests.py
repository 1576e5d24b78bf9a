"""Each request is counted, and logged in the very line that structlog would write."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import LogConfig
from gateway.telemetry.lines import LineWriter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestRecord, RequestReporter
from tests.telemetry.test_metrics import value

# Keys as a folder may hold them: any text, lone surrogates too.
TEXT = st.text(st.characters(), max_size=20)
RECORDS = st.builds(
    RequestRecord,
    operation=st.sampled_from(["GetObject", "PutObject", "Unknown"]),
    bucket=TEXT,
    key=TEXT,
    status=st.sampled_from([0, 200, 404]),
    code=st.none() | st.just("NoSuchKey"),
    tenant=TEXT,
    bytes_in=st.integers(0, 1 << 50),
    bytes_out=st.integers(0, 1 << 50),
    tier=st.none() | st.just("disk"),
    seconds=st.floats(0, 1e6),
    request_id=TEXT,
    remote=TEXT,
    broken=st.none() | TEXT,
    served=st.dictionaries(st.sampled_from(["disk", "origin"]), st.integers(0, 1 << 40)),
    rdma_bytes=st.none() | st.integers(0, 1 << 50),
)


@contextmanager
def _reporting(level: str = "info") -> Iterator[tuple[RequestReporter, Metrics, Any]]:
    metrics = Metrics()
    with tempfile.TemporaryFile() as file:
        config = msgspec.convert({"level": level}, LogConfig)
        yield RequestReporter(metrics, config, LineWriter(file.fileno())), metrics, file


def _written(file: Any) -> list[dict[str, Any]]:
    file.seek(0)
    return [json.loads(line) for line in file.read().splitlines()]


def _as_structlog_has_it(record: RequestRecord) -> dict[str, Any]:
    fields = msgspec.structs.asdict(record)
    del fields["served"]
    for only_where_there_is_one in ("broken", "rdma_bytes"):
        if fields[only_where_there_is_one] is None:
            del fields[only_where_there_is_one]
    fields["seconds"] = round(record.seconds, 6)
    log = structlog.wrap_logger(
        structlog.testing.ReturnLogger(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
    )
    line: dict[str, Any] = json.loads(log.info("request", **fields))
    return line


@given(RECORDS)
def test_a_line_is_what_structlog_would_write(record: RequestRecord) -> None:
    with _reporting() as (reporter, _, file):
        reporter.tell(record)
        (told,) = _written(file)
    expected = _as_structlog_has_it(record)
    assert list(told) == list(expected)
    for stamp in (told.pop("timestamp"), expected.pop("timestamp")):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", stamp)
    assert told == expected


def test_the_time_of_a_line_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with _reporting() as (reporter, _, file):
        for nanoseconds in (1_000_000_000_000_001_000, 1_000_000_000_999_999_999, 0):
            monkeypatch.setattr("time.time_ns", lambda now=nanoseconds: now)
            reporter.tell(RequestRecord())
        assert [line["timestamp"] for line in _written(file)] == [
            "2001-09-09T01:46:40.000001Z",
            "2001-09-09T01:46:40.999999Z",
            "1970-01-01T00:00:00.000000Z",
        ]


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 1), ("info", 1), ("warning", 0), ("error", 0)]
)
def test_a_request_is_information_and_counted_at_every_level(level: str, lines: int) -> None:
    with _reporting(level) as (reporter, metrics, file):
        reporter.tell(RequestRecord("GetObject", status=200))
        assert len(_written(file)) == lines
    labels = {"operation": "GetObject", "code": "200", "tenant": "anonymous"}
    assert value(metrics, "feedrack_requests_total", **labels) == 1


def test_requests_are_counted_by_what_became_of_them() -> None:
    with _reporting() as (reporter, metrics, _):
        for _ in range(2):
            reporter.tell(
                RequestRecord(
                    "GetObject",
                    status=200,
                    tenant="demo",
                    tier="disk",
                    seconds=0.03,
                    served={"disk": 5, "origin": 7},
                )
            )
        reporter.tell(RequestRecord("GetObject", status=404, code="NoSuchKey", tenant="demo"))
        reporter.tell(RequestRecord("GetObject", status=200, tenant="demo", broken="client gone"))

    def count(code: str) -> float | None:
        return value(
            metrics, "feedrack_requests_total", operation="GetObject", code=code, tenant="demo"
        )

    assert [count("200"), count("404"), count("broken"), count("0")] == [2, 1, 1, None]
    assert value(metrics, "feedrack_read_bytes_total", tier="disk") == 10
    assert value(metrics, "feedrack_read_bytes_total", tier="origin") == 14
    name = "feedrack_request_seconds"
    warm = {"operation": "GetObject", "tier": "disk"}
    assert value(metrics, f"{name}_count", **warm) == 2
    assert value(metrics, f"{name}_sum", **warm) == pytest.approx(0.06)
    assert value(metrics, f"{name}_bucket", le="0.05", **warm) == 2
    assert value(metrics, f"{name}_bucket", le="0.025", **warm) == 0
    assert value(metrics, f"{name}_count", operation="GetObject", tier="none") == 2


_SCRIPT = """
from gateway.config import LogConfig
from gateway.telemetry.logs import configure
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestRecord, RequestReporter
config = LogConfig(level="{level}", format="console")
configure(config)
RequestReporter(Metrics(), config).tell(RequestRecord("GetObject", "train", "a\\udcff", 200))
"""


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("warning", 0)])
def test_a_person_may_read_it_too(level: Literal["info", "warning"], lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(level=level)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    told = done.stderr.splitlines()
    assert len(told) == lines
    assert all(b"request" in line and b"GetObject" in line for line in told)
    assert not any(b"broken" in line or line.startswith(b"{") for line in told)
