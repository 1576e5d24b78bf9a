"""Objects as members of a tar archive. Pure.

Plain ustar where that says it all, with pax records where it does not: keys that are long or not
ASCII, large sizes, times before 1970, and what is ours to tell.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13
"""

from gateway.errors import S3Error
from gateway.model.objects import ObjectInfo
from gateway.model.ranges import ByteRange

_BLOCK_BYTES = 512
_NAME_BYTES = 100
# 11 octal digits.
_MOST = 8**11 - 1
_MODE_TO_GROUP = b"0000644\0" + b"0000000\0" * 2
_TAIL = b"\0" * _NAME_BYTES + b"ustar\x0000" + b"\0" * 64 + b"0000000\0" * 2 + b"\0" * 167
# What the checksum counts of the parts that are always the same; its own field as blanks.
_FIXED_SUM = sum(_MODE_TO_GROUP) + sum(_TAIL) + 8 * ord(" ")
_PADDING = bytes(_BLOCK_BYTES)
# What a reader that knows no pax records would call such a member.
_PAX_NAME = b"PaxHeaders/feedrack"


class Tar:
    """Every object a member of a pax archive, its key the member's name."""

    content_type = "application/x-tar"

    def opening(
        self,
        position: int,  # noqa: ARG002 - told by the order
        key: str,
        info: ObjectInfo,
        wanted: ByteRange,
        *,
        partial: bool,
    ) -> bytes:
        """As `Framing.opening`."""
        records = {}
        if partial:
            records["FEEDRACK.range"] = wanted.content_range(info.size_bytes)
        return _member(key, wanted.stop - wanted.start, info.last_modified_ms // 1000, records)

    def closing(self, size_bytes: int) -> bytes:
        """As `Framing.closing`: zeros up to the next block."""
        return _PADDING[: -size_bytes % _BLOCK_BYTES]

    def failure(self, position: int, key: str, error: S3Error) -> bytes:  # noqa: ARG002
        """As `Framing.failure`: an empty member that says why in its pax records."""
        records = {"FEEDRACK.status": str(error.status), "FEEDRACK.code": error.code}
        return _member(key, 0, 0, records)

    def end(self, *, objects: int, failed: int) -> bytes:  # noqa: ARG002 - tar has no place for it
        """As `Framing.end`: two blocks of zeros."""
        return _PADDING * 2


def _member(key: str, size_bytes: int, modified_seconds: int, records: dict[str, str]) -> bytes:
    """The header of a member, after one of the pax records it needs. `records`: further ones."""
    if len(key) <= _NAME_BYTES and key.isascii() and "\0" not in key:
        name = key.encode("ascii")
    else:
        records["path"] = key
        name = key.encode("ascii", "replace").replace(b"\0", b"?")[:_NAME_BYTES]
    if size_bytes > _MOST:
        records["size"] = str(size_bytes)
        size_bytes = 0
    if not 0 <= modified_seconds <= _MOST:
        records["mtime"] = str(modified_seconds)
        modified_seconds = 0
    header = _header(name, size_bytes, modified_seconds, b"0")
    if not records:
        return header
    told = b"".join(_record(keyword, value) for keyword, value in records.items())
    padding = _PADDING[: -len(told) % _BLOCK_BYTES]
    return b"".join((_header(_PAX_NAME, len(told), 0, b"x"), told, padding, header))


def _header(name: bytes, size_bytes: int, modified_seconds: int, kind: bytes) -> bytes:
    numbers = b"%011o\0%011o\0" % (size_bytes, modified_seconds)
    total = _FIXED_SUM + sum(name) + sum(numbers) + kind[0]
    return b"".join(
        (name.ljust(_NAME_BYTES, b"\0"), _MODE_TO_GROUP, numbers, b"%06o\0 " % total, kind, _TAIL)
    )


def _record(keyword: str, value: str) -> bytes:
    """`length keyword=value\\n`, where the length counts its own digits."""
    rest = f" {keyword}={value}\n".encode("utf-8", "replace")
    digits = 1
    while len(str(len(rest) + digits)) != digits:
        digits += 1
    return b"%d%b" % (len(rest) + digits, rest)
