"""What can go wrong for a reader. Flat: catch one of these, or FeedrackError for all."""


class FeedrackError(Exception):
    """Whatever feedrack raises of its own. `key`: the object it is about, if it is about one."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class WrongAddress(FeedrackError):
    """Not an address, an order or an option that means anything."""


class NoCredentials(FeedrackError):
    """No access key was given, and none was found where S3 tools look for one."""


class MissingObject(FeedrackError):
    """There is no object of that key."""


class MissingBucket(FeedrackError):
    """There is no bucket of that name."""


class AccessRefused(FeedrackError):
    """The access key may not do that, or its signature was not accepted."""


class ObjectChanged(FeedrackError):
    """The object is no longer the version that was being read."""


class RangeOutside(FeedrackError):
    """The range begins beyond the object's end."""


class RequestRefused(FeedrackError):
    """The endpoint refused for another reason, which the message names."""


class WrongMemory(FeedrackError):
    """The memory that was given is too small, cannot be written, or is out of the processor's
    reach."""


class MemoryLost(FeedrackError):
    """The device does not let go of memory: its peer may still write there, so it must not be used
    for anything else before this process has ended."""


class Unavailable(FeedrackError):
    """The endpoint could not be reached, or stayed in trouble, for all the times it was asked."""
