"""What is measured: the objects, the tasks, how often and for how long."""

from typing import Any

import msgspec
from msgspec import Struct

_MIB = 1024**2


class Size(Struct, frozen=True, kw_only=True):
    """Objects of one size: how many, and over how many connections they are put in place."""

    label: str
    size_bytes: int
    count: int
    connections: int = 32

    @property
    def prefix(self) -> str:
        return self.label.replace(" ", "")

    @property
    def sample_every(self) -> int:
        """How many bodies come to one that is hashed. Large ones are looked at off the clock.

        To take a large body in, and not only count it, would cost the load generator more than
        the fastest servers spend on sending it.
        """
        return 64 if self.size_bytes <= _MIB else 0


class Read(Struct, frozen=True, kw_only=True):
    """A read of what is held: at most `requests` of them in `seconds`.

    `piece_bytes`: ranges of so many bytes instead of whole objects. `paced`: then again at half of
    the speed that was reached. `silent`: by nginx without its access log as well.
    """

    size: Size
    connections: int
    requests: int
    seconds: float
    piece_bytes: int | None = None
    paced: bool = False
    silent: bool = False

    @property
    def operation(self) -> str:
        return "warm GET" if self.piece_bytes is None else "range GET"

    @property
    def label(self) -> str:
        if self.piece_bytes is None:
            return self.size.label
        return f"{self.piece_bytes // 1024} KiB of {self.size.label}"


class Upload(Struct, frozen=True, kw_only=True):
    """New objects, each once."""

    size: Size
    seconds: float


class Cold(Struct, frozen=True, kw_only=True):
    """Objects read once through a node that never saw them, and from its origin beside it.

    `plainly`: by aiobotocore as well.
    """

    size: Size
    requests: int
    plainly: bool = False


class Plan(Struct, frozen=True, kw_only=True):
    """How much of everything. `sizes` are the objects that every server holds."""

    rounds: int
    sizes: tuple[Size, ...]
    reads: tuple[Read, ...]
    uploads: tuple[Upload, ...]
    colds: tuple[Cold, ...]

    def with_rounds(self, rounds: int) -> "Plan":
        return msgspec.structs.replace(self, rounds=rounds)


_SMALL = Size(label="4 KiB", size_bytes=4096, count=2000)
_MEDIUM = Size(label="64 KiB", size_bytes=65_536, count=500)


def _reads(
    small: Size, large: Size, huge: Size, pieces_of: Size, seconds: float
) -> tuple[Read, ...]:
    some = int(40_000 * seconds)

    def read(size: Size, connections: int = 32, share: int = 1, **more: Any) -> Read:
        return Read(
            size=size, connections=connections, requests=some // share, seconds=seconds, **more
        )

    return (
        read(small, paced=True, silent=True),
        read(_MEDIUM, share=2, silent=True),
        read(large, share=10, paced=True),
        read(huge, connections=1, share=1000),
        read(huge, connections=4, share=1000),
        read(pieces_of, piece_bytes=4096),
    )


def _full() -> Plan:
    large = Size(label="1 MiB", size_bytes=_MIB, count=256)
    huge = Size(label="256 MiB", size_bytes=256 * _MIB, count=2, connections=2)
    largest = Size(label="1 GiB", size_bytes=1024 * _MIB, count=1, connections=1)
    fills = Size(label="64 MiB", size_bytes=64 * _MIB, count=8, connections=4)
    return Plan(
        rounds=3,
        sizes=(_SMALL, _MEDIUM, large, huge, largest),
        reads=_reads(_SMALL, large, huge, largest, 0.7),
        uploads=(
            Upload(size=msgspec.structs.replace(_SMALL, count=6000), seconds=1.0),
            Upload(size=fills, seconds=10.0),
        ),
        colds=(Cold(size=_SMALL, requests=200), Cold(size=fills, requests=8, plainly=True)),
    )


def _quick() -> Plan:
    large = Size(label="1 MiB", size_bytes=_MIB, count=64)
    huge = Size(label="256 MiB", size_bytes=256 * _MIB, count=1, connections=1)
    fills = Size(label="64 MiB", size_bytes=64 * _MIB, count=3, connections=3)
    small = Size(label="4 KiB", size_bytes=4096, count=1000)
    return Plan(
        rounds=1,
        sizes=(small, _MEDIUM, large, huge),
        # The slowest task is left to the full run.
        reads=tuple(
            task for task in _reads(small, large, huge, huge, 0.3) if task.connections != 4
        ),
        uploads=(
            Upload(size=msgspec.structs.replace(_SMALL, count=2000), seconds=0.4),
            Upload(size=fills, seconds=5.0),
        ),
        colds=(Cold(size=small, requests=100), Cold(size=fills, requests=3, plainly=True)),
    )


FULL = _full()
QUICK = _quick()
