"""Structured logs: one event a line on standard error, JSON unless a person reads them."""

import json
import logging
import sys
from typing import Any

import msgspec
import structlog

from gateway.config import LogConfig


def configure(config: LogConfig) -> None:
    """Sets structlog up for the whole process. Call once, before anything logs."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if config.format == "console"
        else structlog.processors.JSONRenderer(serializer=_encode)
    )
    # Bytes to bytes: a line is written for every request, so what it costs counts.
    factory = (
        structlog.PrintLoggerFactory(sys.stderr)
        if config.format == "console"
        else structlog.BytesLoggerFactory(sys.stderr.buffer)
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
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )


def _encode(event: Any, **_: Any) -> bytes:
    try:
        return msgspec.json.encode(event, enc_hook=repr)
    except UnicodeEncodeError:
        # A name with a lone surrogate, as a folder may hold it: JSON can only escape it.
        return json.dumps(event, default=repr).encode("ascii")
