"""Structured logs: one event a line on standard error, JSON unless a person reads them."""

import logging
import sys

import structlog

from gateway.config import LogConfig


def configure(config: LogConfig) -> None:
    """Sets structlog up for the whole process. Call once, before anything logs."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if config.format == "console"
        else structlog.processors.JSONRenderer()
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
