"""What the operating system says, as what an S3 client should hear.

Absence is never decided here: only code that looked for an object may say NoSuchKey, so that a
NAS that went away is an unavailable origin and not an empty one.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import (
    AccessDenied,
    EntityTooLarge,
    FeedrackError,
    KeyTooLongError,
    ServiceUnavailable,
    TierUnavailable,
)

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM}

# Wait longer than for a network hiccup: somebody has to make room.
_FULL_RETRY_SECONDS = "30"


@contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Turns an OSError within into the error of `translate`; `where` names the origin."""
    try:
        yield
    except OSError as error:
        raise translate(error, where) from error


def translate(error: OSError, where: str) -> FeedrackError:
    """The error that stands for `error`: an S3 error where the client can do something about it,
    TierUnavailable for all else (EIO, ESTALE, ENOTCONN, ETIMEDOUT, too many open files, …)."""
    reason = error.strerror or str(error)
    number = error.errno
    if number in _FULL:
        return ServiceUnavailable(
            f"Origin {where} has no room left ({reason}).",
            headers={"Retry-After": _FULL_RETRY_SECONDS},
        )
    if number == errno.EFBIG:
        return EntityTooLarge(f"The file system of origin {where} takes no file of this size.")
    if number in _DENIED:
        return AccessDenied(f"Origin {where} does not permit this ({reason}).")
    if number == errno.EROFS:
        return AccessDenied(f"Origin {where} is read-only.")
    if number == errno.EXDEV:
        return AccessDenied(f"Another file system is mounted at this key in origin {where}.")
    if number == errno.ENAMETOOLONG:
        return KeyTooLongError(f"The file system of origin {where} takes no name of this length.")
    return TierUnavailable(f"Origin {where} does not answer ({reason}).")
