"""Logs: one line of JSON an event, on standard error, from the level on that was asked for."""

import json
import subprocess
import sys

_SCRIPT = """
import structlog
from gateway.config import LogConfig
from gateway.telemetry.logs import configure
configure(LogConfig(level="{level}", format="{format}"))
log = structlog.get_logger()
log.debug("quiet")
log.info("hello", key="a\\nb", size_bytes=3)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def _lines(level: str, how: str = "json") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(level=level, format=how)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_an_event_is_one_line_of_json_with_level_and_time() -> None:
    hello, failed = (json.loads(line) for line in _lines("info"))
    assert (hello["event"], hello["key"], hello["size_bytes"]) == ("hello", "a\nb", 3)
    assert hello["level"] == "info"
    assert hello["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in failed["exception"]


def test_the_level_is_a_floor() -> None:
    assert [json.loads(line)["event"] for line in _lines("error")] == ["failed"]
    assert len(_lines("debug")) == 3


def test_a_person_may_read_it_too() -> None:
    assert any("hello" in line and not line.startswith("{") for line in _lines("info", "console"))
