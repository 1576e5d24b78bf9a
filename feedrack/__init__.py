"""What a training process imports: light, and no server in it."""

from feedrack.dataset import Dataset, open_dataset
from feedrack.errors import (
    AccessRefused,
    FeedrackError,
    MemoryLost,
    MissingBucket,
    MissingObject,
    NoCredentials,
    ObjectChanged,
    RangeOutside,
    RequestRefused,
    Unavailable,
    WrongAddress,
    WrongMemory,
)
from feedrack.keys import Keys

__all__ = [
    "AccessRefused",
    "Dataset",
    "FeedrackError",
    "Keys",
    "MemoryLost",
    "MissingBucket",
    "MissingObject",
    "NoCredentials",
    "ObjectChanged",
    "RangeOutside",
    "RequestRefused",
    "Unavailable",
    "WrongAddress",
    "WrongMemory",
    "open_dataset",
]
