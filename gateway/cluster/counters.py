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
            members = {each.id for each in self._members.all()}
            found += [_bytes_by_node(raw, members) for raw in joined]
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
        return min(_COUNTERS_AT_ONCE, max(1, _FIELDS_AT_ONCE // max(1, len(self._members.all()))))


def sum_up(total: dict[str, int], found: Mapping[str, int]) -> None:
    """Adds to each node's bytes what was found of it."""
    for id_, size_bytes in found.items():
        total[id_] = total.get(id_, 0) + size_bytes


def entry_of(origin: str, bucket: bytes) -> bytes:
    """A bucket as the set of buckets names it."""
    return origin.encode() + b":" + bucket


def _bytes_by_node(joined: bytes, members: set[str]) -> dict[str, int]:
    words = joined.decode("ascii", "replace").split(" ")
    pairs = zip(words[::2], words[1::2], strict=False)
    return {id_: int(size) for id_, size in pairs if id_ in members and size.isdecimal()}
