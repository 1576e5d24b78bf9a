"""Whether the cache disk takes anything in: what went wrong, said once, loudly, and counted."""

import errno
import os
from pathlib import Path
from typing import Literal

import structlog

from gateway.telemetry.metrics import Metrics

Reason = Literal["full", "read-only", "io-error", "missing"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# A folder that cannot be made because of what is at its place is as good as missing.
_MISSING = frozenset(
    {errno.ENOENT, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTDIR, errno.EEXIST}
)

log = structlog.get_logger()


def is_full(error: OSError) -> bool:
    """Whether the disk has no space left."""
    return error.errno in _FULL


def reason_of(error: OSError) -> Reason:
    """What a disk's error means for the cache."""
    if error.errno in _FULL:
        return "full"
    if error.errno in _READ_ONLY:
        return "read-only"
    return "missing" if error.errno in _MISSING else "io-error"


def reason_at(error: OSError, path: Path) -> Reason:
    """As `reason_of`, of an error that LMDB may have given for a file under `path`: it calls a
    write that a full disk cut short an I/O error."""
    reason = reason_of(error)
    if reason == "io-error":
        try:
            left = os.statvfs(path)
        except OSError as worse:
            return reason_of(worse)
        if left.f_bavail * left.f_frsize < 1024**2:
            return "full"
    return reason


class Health:
    """The present state: `reason` is None while all is well."""

    def __init__(self, metrics: Metrics) -> None:
        self._gauge = metrics.cache_degraded
        self.reason: Reason | None = None

    def failed(self, reason: Reason, detail: str) -> None:
        """From now on nothing is taken in."""
        if reason == self.reason:
            return
        if self.reason is not None:
            self._gauge.labels(self.reason).set(0)
        self.reason = reason
        self._gauge.labels(reason).set(1)
        log.error("cache degraded: reads pass through to the origin", reason=reason, detail=detail)

    def recovered(self) -> None:
        """The disk takes bytes in again."""
        if self.reason is None:
            return
        self._gauge.labels(self.reason).set(0)
        log.warning("cache recovered", reason=self.reason)
        self.reason = None
