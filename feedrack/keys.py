"""The keys of a dataset, in order, in one piece of memory.

Ten million keys as Python strings are a gigabyte of objects, each of which a forked worker copies
as soon as it looks at it. Here they are one run of UTF-8 and an array of offsets: about their own
length and 8 bytes each, shared by all forks.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

from feedrack.errors import WrongAddress


class Keys(Sequence[str]):
    """Keys in the order of their UTF-8, each once. Immutable; a pickle of it is as compact."""

    __slots__ = ("_offsets", "_text")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """Takes keys in any order. They are held as objects only where they are not sorted."""
        lengths = array("H")
        pieces: list[bytes] = []
        piece: list[bytes] = []
        last = b""
        in_order = True
        for key in keys:
            in_order = in_order and (key > last or not lengths)
            last = key
            lengths.append(len(key))
            piece.append(key)
            if len(piece) == 4096:
                pieces.append(b"".join(piece))
                piece.clear()
        pieces.append(b"".join(piece))
        self._take(b"".join(pieces), lengths)
        if not in_order:
            ordered = sorted(set(self._raw_all()))
            self._take(b"".join(ordered), array("H", map(len, ordered)))

    def _take(self, text: bytes, lengths: "array[int]") -> None:
        self._text = text
        self._offsets = array("Q", accumulate(lengths, initial=0))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self.raw(index).decode()

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in self._raw_all())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keys):
            return NotImplemented
        return self._text == other._text and self._offsets == other._offsets

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        lengths = array("H", (end - start for start, end in pairwise(self._offsets)))
        return _restored, (self._text, lengths)

    def raw(self, index: int) -> bytes:
        """A key's UTF-8. IndexError beyond the ends; negative ones count from the end."""
        count = len(self._offsets) - 1
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError(f"{count} keys, and no number {index}")
        return self._text[self._offsets[index] : self._offsets[index + 1]]

    def find(self, key: str) -> int | None:
        """The position of a key, or None."""
        wanted = key.encode("utf-8", "surrogatepass")
        at = bisect_left(range(len(self)), wanted, key=self.raw)
        return at if at < len(self) and self.raw(at) == wanted else None

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """The position of a key. ValueError where it is not there."""
        found = self.find(key)
        if found is None or found not in range(*slice(start, stop).indices(len(self))):
            raise ValueError(f"no key {key!r}")
        return found

    def _raw_all(self) -> Iterator[bytes]:
        text = self._text
        return (text[start:end] for start, end in pairwise(self._offsets))


def _restored(text: bytes, lengths: "array[int]") -> Keys:
    keys = Keys()
    keys._take(text, lengths)
    return keys


Order = str | Sequence[int]


def in_order(keys: Keys, order: Order) -> Sequence[int]:
    """Positions in the order asked for: `lexical`, `shuffled:SEED`, or positions as they are.

    `shuffled:SEED` is the order of a hash of seed and key: the same for the same keys everywhere,
    and that in which `packer --order` lays objects out. WrongAddress for anything else."""
    if not isinstance(order, str):
        return order
    if order == "lexical":
        return range(len(keys))
    kind, found, seed = order.partition(":")
    if kind == "shuffled" and found and seed:
        return _shuffled(keys, seed)
    raise WrongAddress(f"not an order: {order} (lexical, shuffled:SEED, or positions)")


def _shuffled(keys: Keys, seed: str) -> Sequence[int]:
    """A radix step over the first two bytes of the hashes, then each bucket by itself: so that ten
    million positions are never Python objects all at once."""
    secret = seed.encode()[:64]
    digests = bytearray()
    counts = [0] * 65_536
    for key in keys._raw_all():
        digest = hashlib.blake2b(key, digest_size=16, key=secret).digest()
        counts[digest[0] << 8 | digest[1]] += 1
        digests += digest
    places = list(accumulate(counts, initial=0))
    bounds = list(places)
    order = array("I" if len(keys) < 2**32 else "Q", bytes(4 * len(keys)))
    for index in range(len(keys)):
        bucket = digests[16 * index] << 8 | digests[16 * index + 1]
        order[places[bucket]] = index
        places[bucket] += 1

    def digest_of(index: int) -> bytes:
        return bytes(digests[16 * index : 16 * index + 16])

    for start, end in pairwise(bounds):
        if end - start > 1:
            order[start:end] = array(order.typecode, sorted(order[start:end], key=digest_of))
    return order
