"""HTTP byte ranges and the chunks they touch. Pure arithmetic."""

import re
from collections.abc import Iterator

from msgspec import Struct

from gateway.errors import InvalidRange
from gateway.model.objects import ObjectVersion, Span

_RANGE = re.compile(r"bytes=\s*(\d{0,20})\s*-\s*(\d{0,20})\s*", re.ASCII | re.IGNORECASE)


class RangeSpec(Struct, frozen=True):
    """A Range header before the object's size is known: first-last, first- or -suffix."""

    first: int | None
    last: int | None

    def resolve(self, size_bytes: int) -> "ByteRange":
        """The bytes meant, of an object of `size_bytes`. InvalidRange where there are none.

        The last bytes of an empty object are the one empty range, which AWS answers with 200.
        """
        if self.first is None:
            suffix = self.last or 0
            if suffix == 0:
                raise _unsatisfiable(self, size_bytes)
            return ByteRange(max(0, size_bytes - suffix), size_bytes)
        if self.first >= size_bytes:
            raise _unsatisfiable(self, size_bytes)
        stop = size_bytes if self.last is None else min(self.last + 1, size_bytes)
        return ByteRange(self.first, stop)

    def __str__(self) -> str:
        first = "" if self.first is None else self.first
        last = "" if self.last is None else self.last
        return f"bytes={first}-{last}"


class ByteRange(Struct, frozen=True):
    """Bytes `start` to `stop` (exclusive) of an object."""

    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def content_range(self, total_bytes: int) -> str:
        """The Content-Range value, RFC 9110 section 14.4."""
        return f"bytes {self.start}-{self.stop - 1}/{total_bytes}"

    def header(self) -> str:
        """The Range value that asks for exactly these bytes."""
        return f"bytes={self.start}-{self.stop - 1}"


def parse_range(header: str | None) -> RangeSpec | None:
    """The one range asked for; None where the header is absent or to be ignored.

    As S3 does, a header that is not one valid byte range is ignored and the whole object is
    answered: other units, several ranges, last before first (RFC 9110 section 14.2).
    """
    if header is None:
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        return None
    first, last = (int(group) if group else None for group in match.groups())
    if first is None and last is None:
        return None
    if first is not None and last is not None and last < first:
        return None
    return RangeSpec(first, last)


def span(version: ObjectVersion, number: int, chunk_size_bytes: int) -> Span:
    """Chunk `number` of a version."""
    start = number * chunk_size_bytes
    return Span(version, number, start, min(start + chunk_size_bytes, version.size_bytes))


def spans(version: ObjectVersion, wanted: ByteRange, chunk_size_bytes: int) -> Iterator[Span]:
    """The chunks that `wanted` touches, in order."""
    if wanted.size_bytes == 0:
        return
    for number in range(
        wanted.start // chunk_size_bytes, (wanted.stop - 1) // chunk_size_bytes + 1
    ):
        yield span(version, number, chunk_size_bytes)


def _unsatisfiable(asked: RangeSpec, size_bytes: int) -> InvalidRange:
    return InvalidRange(
        fields={"RangeRequested": str(asked), "ActualObjectSize": str(size_bytes)},
        headers={"Content-Range": f"bytes */{size_bytes}"},
    )
