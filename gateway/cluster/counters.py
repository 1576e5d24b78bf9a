"""The directory's counters: where they are in Redis, and what they say.

    dir:b:ORIGIN:BUCKET:FOLDER   hash: node → bytes held of the keys counted under the folder
    dir:f:ORIGIN:BUCKET          sorted set of the bucket's folders
    dir:buckets                  set of ORIGIN:BUCKET, those that have folders

They are read by a script that joins each hash to one text: to a thousand members that is a hundred
times fewer pieces for this process to take apart, and it is the one that serves reads.
"""

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.cluster.datasets import Counter
from gateway.cluster.members import Members
from gateway.index.cluster import Link, Script

# Fields that one script comes to: some 5 ms of Redis, which answers nobody else meanwhile.
_FIELDS_AT_ONCE = 6_400
_COUNTERS_AT_ONCE = 200

_JOINED = Script("""
local found = {}
for at, key in ipairs(KEYS) do found[at] = table.concat(redis.call('HGETALL', key), ' ') end
return found
""")


class Counts(Protocol):
    """What nodes hold, by folder. Everything may raise TierUnavailable."""

    async def buckets(self) -> list[tuple[str, bytes]]:
        """Origins and buckets of theirs of which something is held."""
        ...

    async def folders(self, origin: str, bucket: bytes, after: bytes, limit: int) -> list[bytes]:
        """The first of a bucket's folders that do not come before `after`, in order."""
        ...

    async def held(self, counters: Sequence[Counter]) -> list[dict[str, int]]:
        """By node the bytes of each counter, in the order asked."""
        ...


class Counters:
    """`Counts` of a cluster; fields of nodes that are no members count for nothing."""

    def __init__(self, link: Link, members: Members) -> None:
        self._link = link
        self._members = members
        self.buckets_key = link.key("dir", "buckets")
        self._ids_of: frozenset[str] = frozenset()
        self._ids_version = -1

    def key(self, counter: Counter) -> str:
        """Where a counter is."""
        # Names may hold any character.
        name = urlsafe_b64encode(counter.folder).decode().rstrip("=")
        bucket = counter.bucket.decode("utf-8", "replace")
        return self._link.key("dir", "b", counter.origin, bucket, name)

    def folders_key(self, origin: str, bucket: bytes) -> str:
        """Where the names of a bucket's folders are."""
        return self._link.key("dir", "f", origin, bucket.decode("utf-8", "replace"))

    async def buckets(self) -> list[tuple[str, bytes]]:
        """As `Counts`. CoordinatorUnavailable."""
        # No origin's name has a colon.
        found = await self._link.command("SMEMBERS", self.buckets_key)
        parts = (raw.partition(b":") for raw in found)
        return sorted((origin.decode("utf-8", "replace"), bucket) for origin, _, bucket in parts)

    async def folders(self, origin: str, bucket: bytes, after: bytes, limit: int) -> list[bytes]:
        """As `Counts`. CoordinatorUnavailable."""
        key = self.folders_key(origin, bucket)
        found: list[bytes] = await self._link.command(
            "ZRANGEBYLEX", key, b"[" + after, "+", "LIMIT", 0, limit
        )
        return found

    async def held(self, counters: Sequence[Counter]) -> list[dict[str, int]]:
        """As `Counts`. CoordinatorUnavailable."""
        step = self._at_once()
        found: list[dict[str, int]] = []
        for start in range(0, len(counters), step):
            keys = [self.key(each) for each in counters[start : start + step]]
            joined = await self._link.script(_JOINED, keys, ())
            found += [_of_members(raw, self._ids()) for raw in joined]
        return found

    async def total(self, counters: Sequence[Counter]) -> dict[str, int]:
        """By node the bytes of all these counters together. CoordinatorUnavailable."""
        step = self._at_once()
        found: dict[str, int] = {}
        for start in range(0, len(counters), step):
            for each in await self.held(counters[start : start + step]):
                sum_up(found, each)
        return found

    def _at_once(self) -> int:
        return min(_COUNTERS_AT_ONCE, max(1, _FIELDS_AT_ONCE // max(1, len(self._ids()))))

    def _ids(self) -> frozenset[str]:
        if self._ids_version != self._members.version:
            self._ids_of = frozenset(each.id for each in self._members.all())
            self._ids_version = self._members.version
        return self._ids_of


def sum_up(total: dict[str, int], found: Mapping[str, int]) -> None:
    """Adds to each node's bytes what was found of it."""
    if not total:
        # As most datasets have one counter.
        total.update(found)
        return
    for id_, size_bytes in found.items():
        total[id_] = total.get(id_, 0) + size_bytes


def entry_of(origin: str, bucket: bytes) -> bytes:
    """A bucket as the set of buckets names it."""
    return origin.encode() + b":" + bucket


def _of_members(joined: bytes, members: frozenset[str]) -> dict[str, int]:
    """The fields of members in a joined hash. Millions of fields make one listing."""
    words = joined.decode("ascii", "replace").split(" ")
    try:
        found = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    except ValueError:
        # None of this was written by a node; the rest was.
        pairs = zip(words[::2], words[1::2], strict=False)
        found = {id_: int(size) for id_, size in pairs if size.isdecimal()}
    if found.keys() <= members:
        return found
    return {id_: size for id_, size in found.items() if id_ in members}
