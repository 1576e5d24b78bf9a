"""Keys as names in a folder, and back: the escaping of the directory origin. Pure.

A key is cut at its slashes, and a segment that can be a file name is one: `a/b.txt` is the file
`b.txt` in the folder `a`, so that others find on the NAS what they know from the bucket. What a
file system does not take, or what would lead elsewhere, is written with a reserved prefix:

| segment | names |
| --- | --- |
| empty, `.`, `..`, with NUL or a reserved prefix | `.feedrack~q` + the segment, quoted |
| longer than 255 bytes | a chain of folders `.feedrack~c…`, the last piece `.feedrack~z…` |

A key that is also the prefix of others (`a` beside `a/b`) is the file `.feedrack~o` in its folder.
Only the canonical spelling of a segment is read back, so one key has one place: any other name
with a reserved prefix is not an object. Names are bytes of UTF-8; nothing is case-folded or
normalised, so a case-sensitive file system is assumed.

Because every place is reached name by name from the bucket's folder, and no name is `..`, empty,
or holds a slash, no key leads out of its bucket.
"""

import re
from collections.abc import Iterator

from gateway.errors import InvalidBucketName, InvalidURI, KeyTooLongError

RESERVED = ".feedrack~"
STATE_NAME = ".feedrack~state"
OBJECT_NAME = ".feedrack~o"

KEY_LIMIT_BYTES = 1024
NAME_LIMIT_BYTES = 255
# Folders within folders: a key of a thousand slashes would cost every listing that meets it
# seconds, and others could hardly remove it from the NAS.
SEGMENT_LIMIT = 256

_QUOTED = ".feedrack~q"
_CHAINED = ".feedrack~c"
_LAST = ".feedrack~z"
# Leaves room for the prefix and for quotes of three characters in the worst case.
_PIECE_BYTES = 80
# What an NFS client makes of a file that was deleted while open.
_FOREIGN_RESERVED = ".nfs"

_BUCKET = re.compile(r"(?!xn--|sthree-|amzn-s3-demo-)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


def names_of(key: str) -> tuple[str, ...]:
    """The names that lead from the bucket's folder to the object. KeyTooLongError, InvalidURI."""
    try:
        raw = key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidURI("The key is not valid UTF-8.") from error
    if len(raw) > KEY_LIMIT_BYTES:
        raise KeyTooLongError(
            fields={"Size": str(len(raw)), "MaxSizeAllowed": str(KEY_LIMIT_BYTES)}
        )
    if not raw:
        raise InvalidURI("The key is empty.")
    segments = key.split("/")
    if len(segments) > SEGMENT_LIMIT:
        raise KeyTooLongError(
            f"A directory takes keys of at most {SEGMENT_LIMIT} segments between slashes.",
            fields={"Size": str(len(segments)), "MaxSizeAllowed": str(SEGMENT_LIMIT)},
        )
    return tuple(name for segment in segments for name in encode(segment))


def encode(segment: str) -> tuple[str, ...]:
    """One segment as one name, or as a chain of names where it is too long for one."""
    name = segment if _is_plain(segment) else _QUOTED + _quote(segment)
    if len(name.encode("utf-8")) <= NAME_LIMIT_BYTES:
        return (name,)
    *first, last = _pieces(segment)
    return (*(_CHAINED + _quote(piece) for piece in first), _LAST + _quote(last))


def decode(names: tuple[str, ...]) -> str | None:
    """The segment that a whole chain of names (mostly one) stands for, or None if it is none; a
    name of others that is not UTF-8 is none."""
    if not all(map(_is_utf8, names)):
        return None
    *first, last = names
    if not first and _is_plain(last):
        segment = last
    elif not first and last.startswith(_QUOTED):
        segment = _unquote(last.removeprefix(_QUOTED))
    elif first and last.startswith(_LAST) and all(is_chained(name) for name in first):
        pieces = [name.removeprefix(_CHAINED) for name in first] + [last.removeprefix(_LAST)]
        segment = "".join(map(_unquote, pieces))
    else:
        return None
    return segment if encode(segment) == names else None


def is_chained(name: str) -> bool:
    """Whether `name` is a folder in the middle of a long segment."""
    return name.startswith(_CHAINED)


def is_bucket(name: str) -> bool:
    """Whether a folder of this name is a bucket: what S3 clients can say, hidden folders not.

    Wider than what may be created (capitals, underscores), as folders were there before us.
    """
    return _FOLDER.fullmatch(name) is not None


def check_new_bucket(name: str) -> None:
    """InvalidBucketName unless S3's rules for general purpose buckets allow the name.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
    """
    if (
        _BUCKET.fullmatch(name) is None
        or ".." in name
        or _ADDRESS.fullmatch(name)
        or name.endswith(("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"))
    ):
        raise InvalidBucketName(fields={"BucketName": name})


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and "\0" not in name
        and not name.startswith((RESERVED, _FOREIGN_RESERVED))
    )


def _quote(text: str) -> str:
    return text.replace("%", "%25").replace("\0", "%00")


def _unquote(text: str) -> str:
    return text.replace("%00", "\0").replace("%25", "%")


def _pieces(segment: str) -> Iterator[str]:
    """The segment in pieces of at most `_PIECE_BYTES` bytes, cut between characters."""
    piece = ""
    size_bytes = 0
    for character in segment:
        width = len(character.encode("utf-8"))
        if size_bytes + width > _PIECE_BYTES:
            yield piece
            piece = ""
            size_bytes = 0
        piece += character
        size_bytes += width
    yield piece
