"""Under which name the bytes of a key are counted, and which counters make up a dataset. Pure.

Counted is by folder, to two components deep: `a/b/c/d.bin` under `a/b/`, `a/x.bin` under `a/`, and
`x.bin` under the empty name. So a counter is of all keys below a folder of two components, and of
the keys that lie directly in a shorter one. A pack's shards are counted under the folder of the
pack, `.feedrack/packs/NAME/`. Folders beyond a bucket's limit are counted together.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.model.reserved import PACKS

FOLDERS_A_BUCKET = 512
# No folder has this name: keys do not hold it (S3 refuses what is not UTF-8).
REST = b"\xff"

_DEPTH = 2
_PACKS = PACKS.encode()
# Longer names are cut off to the component before.
_MOST_BYTES = 512


def folder_of(key: bytes) -> bytes:
    """The folder that a key is counted under."""
    if key.startswith(_PACKS):
        end = key.find(b"/", len(_PACKS))
        return key[: end + 1] if end > 0 else _PACKS
    end = -1
    for _ in range(_DEPTH):
        further = key.find(b"/", end + 1)
        if further < 0 or further >= _MOST_BYTES:
            break
        end = further
    return key[: end + 1]


def is_deep(folder: bytes) -> bool:
    """Whether the folder's counter is of all that lies below it."""
    return folder.startswith(_PACKS) or folder.count(b"/") >= _DEPTH


class Counter(Struct, frozen=True):
    """One counter of bytes: the keys of a folder of an origin's bucket."""

    origin: str
    bucket: bytes
    folder: bytes


class Folders:
    """Finds the counter of each key, and remembers the folders: beyond `FOLDERS_A_BUCKET` of a
    bucket the others are counted together."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], set[bytes]] = {}

    def counter(self, origin: str, bucket: bytes, key: bytes) -> Counter:
        """What a key's bytes are counted by."""
        folder = folder_of(key)
        known = self._known.setdefault((origin, bucket), set())
        if folder not in known:
            if len(known) >= FOLDERS_A_BUCKET:
                folder = REST
            known.add(folder)
        return Counter(origin, bucket, folder)


class Cover(Struct, frozen=True):
    """What adds up to a prefix: the counters that count nothing else. `exact`: no other counter has
    keys of the prefix beside others."""

    whole: tuple[bytes, ...]
    exact: bool


def cover(folders: Iterable[bytes], prefix: bytes) -> Cover:
    """The counters among `folders` that make up the dataset of a prefix, packs aside."""
    whole: list[bytes] = []
    exact = True
    for folder in folders:
        if folder.startswith(_PACKS):
            continue
        if folder == REST:
            if prefix:
                exact = False
            else:
                whole.append(folder)
        elif folder.startswith(prefix):
            whole.append(folder)
        elif _may_have(folder, prefix):
            exact = False
    return Cover(tuple(whole), exact)


def _may_have(folder: bytes, prefix: bytes) -> bool:
    """Whether keys counted under a folder that does not begin with `prefix` may."""
    if not prefix.startswith(folder):
        return False
    # A counter that is not of all below has no key with a further slash, but for those whose
    # folder's name was too long to be one.
    rest = prefix[len(folder) :]
    return is_deep(folder) or b"/" not in rest or len(prefix) >= _MOST_BYTES


def pack_folders(roots: Sequence[str]) -> tuple[bytes, ...]:
    """The counters of packs that lie there."""
    return tuple(root.encode() for root in roots)
