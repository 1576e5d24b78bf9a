"""Structured logs: one event a line on standard error, JSON unless a person reads them."""

import json
import logging
from typing import Any

import msgspec
import structlog

from gateway.config import LogConfig
from gateway.telemetry.lines import LineWriter, standard_error


def configure(config: LogConfig) -> None:
    """Sets structlog up for the whole process. Call once, before anything logs."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if config.format == "console"
        else structlog.processors.JSONRenderer(serializer=_encode)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[config.level.upper()]
        ),
        logger_factory=lambda *_: _Logger(standard_error()),
        cache_logger_on_first_use=True,
    )


class _Logger:
    """What structlog hands its rendered lines to: they go out at once, and in order."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def msg(self, message: str | bytes) -> None:
        line = (
            message if isinstance(message, bytes) else message.encode("utf-8", "backslashreplace")
        )
        self._lines.write(line + b"\n")

    debug = info = warning = error = critical = exception = msg


def _encode(event: Any, **_: Any) -> bytes:
    try:
        return msgspec.json.encode(event, enc_hook=repr)
    except UnicodeEncodeError:
        # A name with a lone surrogate, as a folder may hold it: JSON can only escape it.
        return json.dumps(event, default=repr).encode("ascii")
