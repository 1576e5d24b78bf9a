"""What a prefetch is: what was asked for, how it is shared out, and how far it is. Pure.

A job is walked a page at a time. Each object of it goes to the homes of its chunks in each rack
that is to be warmed, or as a whole to each node that is named. What one node is to bring in of one
object is an item, of not too many chunks, so that what is more urgent has its turn soon.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.cluster.chunk_sets import STRETCH_CHUNKS, chunks_in, decode_bits, encode_bits
from gateway.cluster.members import Member
from gateway.model.objects import ObjectRef

State = Literal["running", "done", "cancelled"]

# Chunks of one item: 256 MiB of the usual size.
ITEM_CHUNKS = 32
MOST_KEYS = 100_000
MOST_PRIORITY = 1_000_000
_LONGEST_NAME = 128

# The homes of a key's chunk among those members, the best first.
Homes = Callable[[Sequence[Member], ObjectRef, int], Sequence[Member]]


class BadPrefetch(ValueError):  # noqa: N818 - named as the other refusals are
    """What was asked for cannot be understood; the message says why."""


class NobodyServes(Exception):  # noqa: N818 - named as the other refusals are
    """A rack or node that is to be warmed has nobody who serves just now; it may come back."""


class Asked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The document of `POST /v1/prefetch`."""

    dataset: str | None = None
    keys: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    priority: int = 0
    job: str = ""


class Spec(Struct, frozen=True):
    """What a job is to warm: all of `prefix` in `bucket`, or `keys`, each with its bucket."""

    bucket: str
    prefix: str
    keys: tuple[tuple[str, str], ...]
    racks: tuple[str, ...]
    nodes: tuple[str, ...]
    job: str

    @property
    def dataset(self) -> str | None:
        return None if self.keys else f"s3://{self.bucket}/{self.prefix}"


class Item(Struct, frozen=True, array_like=True):
    """What one node is to bring in of one object: the chunks `bits` of the stretch that begins with
    chunk `first`; of a small object all of it. `rack` is what it counts for."""

    id: int
    object_id: int
    bucket: str
    key: str
    etag: str
    size_bytes: int
    rack: str
    first: int
    bits: bytes

    @property
    def chunks(self) -> Iterator[int]:
        return (self.first + place for place in chunks_in(decode_bits(self.bits)))


class Found(Struct, frozen=True):
    """An object that a walk has come to. `origin` and `origin_bucket` say where it is at home."""

    bucket: str
    key: str
    etag: str
    size_bytes: int
    origin: str
    origin_bucket: str

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.origin, self.origin_bucket, self.key)


class Progress(Struct, frozen=True, kw_only=True):
    """How far a job is. Bytes count once for each rack, or node, that is to have them."""

    id: str
    spec: Spec
    priority: int
    state: State
    listed: bool
    objects_found: int
    objects_done: int
    objects_failed: int
    bytes_found: int
    bytes_done: int
    bytes_failed: int
    bytes_by_rack: Mapping[str, int]

    def plain(self) -> dict[str, object]:
        """As JSON says it."""
        spec = self.spec
        return {
            "id": self.id,
            "dataset": spec.dataset,
            "keys": len(spec.keys),
            "racks": list(spec.racks),
            "nodes": list(spec.nodes),
            "job": spec.job,
            "priority": self.priority,
            "state": self.state,
            "listed": self.listed,
            "objects": {
                "found": self.objects_found,
                "done": self.objects_done,
                "failed": self.objects_failed,
            },
            "bytes": {
                "found": self.bytes_found,
                "done": self.bytes_done,
                "failed": self.bytes_failed,
            },
            "by_rack": [
                {"rack": rack, "bytes": size} for rack, size in sorted(self.bytes_by_rack.items())
            ],
        }


_decode = msgspec.json.Decoder(Asked).decode
encode_spec = msgspec.json.Encoder().encode
decode_spec = msgspec.json.Decoder(Spec).decode
_encode_item = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(Item).decode


def encode_item(item: Item) -> bytes:
    """An item as it waits in a queue, its numbers in front for whoever cannot read the rest."""
    return b"%d:%d:" % (item.id, item.object_id) + _encode_item(item)


def decode_item(raw: bytes) -> Item:
    """What `encode_item` made."""
    return _decode_item(raw.split(b":", 2)[2])


def read_asked(raw: bytes) -> tuple[Spec, int]:
    """What the document asks for, and its priority. BadPrefetch."""
    try:
        asked = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadPrefetch(f"the document cannot be read: {error}") from error
    if bool(asked.dataset) == bool(asked.keys):
        raise BadPrefetch("either dataset or keys is needed")
    if len(asked.keys) > MOST_KEYS:
        raise BadPrefetch(f"at most {MOST_KEYS} keys; a dataset may hold any number")
    if asked.racks and asked.nodes:
        raise BadPrefetch("either racks or nodes, not both")
    for name in (*asked.racks, *asked.nodes, asked.job):
        if len(name) > _LONGEST_NAME:
            raise BadPrefetch("a name of a rack, node or job is too long")
    priority = check_priority(asked.priority)
    bucket, prefix = _split(asked.dataset, "dataset") if asked.dataset else ("", "")
    keys = tuple(_split(each, "a key") for each in asked.keys)
    if not all(key for _, key in keys):
        raise BadPrefetch("a key must be s3://bucket/key")
    return Spec(bucket, prefix, keys, asked.racks, asked.nodes, asked.job), priority


def check_priority(value: object) -> int:
    """A priority. BadPrefetch."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_PRIORITY:
        raise BadPrefetch(f"priority must be an integer, {-MOST_PRIORITY} to {MOST_PRIORITY}")
    return value


def targets(
    spec: Spec, members: Sequence[Member], here: str, *, rack_aware: bool
) -> list[list[Member]]:
    """Among whom each object is to be shared out, once in each of these lists."""
    if spec.nodes:
        return [[each] for each in members if each.id in spec.nodes]
    if not rack_aware:
        return [list(members)]
    racks = spec.racks or (here,)
    found = [[each for each in members if each.rack == rack] for rack in dict.fromkeys(racks)]
    return [each for each in found if each]


def share_out(
    found: Found,
    groups: Sequence[Sequence[Member]],
    homes: Homes,
    *,
    chunk_bytes: int,
    small_bytes: int,
    wanted: Sequence[int] | None = None,
) -> list[tuple[Member, int, int]]:
    """Who brings in what: members, the first chunk of a stretch, and bits of it. `wanted`: of these
    chunks only."""
    count = 1 if found.size_bytes <= small_bytes else -(-found.size_bytes // chunk_bytes)
    numbers = range(count) if wanted is None else [each for each in wanted if each < count]
    shares: list[tuple[Member, int, int]] = []
    for group in groups:
        bits: dict[tuple[str, int], int] = {}
        who = {each.id: each for each in group}
        for number in numbers:
            best = homes(group, found.ref, number)
            if not best:
                continue
            # At most so many to one item, whichever chunks they are.
            stretch = number // STRETCH_CHUNKS
            key = best[0].id, stretch
            bits[key] = bits.get(key, 0) | 1 << (number % STRETCH_CHUNKS)
        for (id_, stretch), some in bits.items():
            places = list(chunks_in(some))
            for start in range(0, len(places), ITEM_CHUNKS):
                part = sum(1 << place for place in places[start : start + ITEM_CHUNKS])
                shares.append((who[id_], stretch * STRETCH_CHUNKS, part))
    return shares


def size_of(first: int, bits: int, size_bytes: int, *, chunk_bytes: int, small_bytes: int) -> int:
    """The bytes of these chunks of an object."""
    if size_bytes <= small_bytes:
        return size_bytes
    return sum(
        min((first + place + 1) * chunk_bytes, size_bytes) - (first + place) * chunk_bytes
        for place in chunks_in(bits)
    )


def item_of(id_: int, object_id: int, found: Found, member: Member, first: int, bits: int) -> Item:
    """A share as an item."""
    return Item(
        id_,
        object_id,
        found.bucket,
        found.key,
        found.etag,
        found.size_bytes,
        member.rack,
        first,
        encode_bits(bits),
    )


def _split(text: str, what: str) -> tuple[str, str]:
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not text.startswith("s3://") or not bucket:
        raise BadPrefetch(f"{what} must be s3://bucket/…")
    return bucket, key
