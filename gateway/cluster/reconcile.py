"""Slow reconciliation: what the directory says of this node is compared with what the node holds,
both ways, and what is left of nodes that are gone is cleared away.

A pass runs after a start, when Redis was emptied or away, when this node has become a member anew,
and every so often. After an emptied Redis it tells everything again. At every moment it may stop
and begin anew.

The keys of the directory are looked through by one SCAN of all of Redis, a little at a time. Each
node looks for fields of its own; those of nodes that are gone are left to the member of the first
id, once they have been gone for a minute, so that one that restarts finds its own again.
"""

import asyncio
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence

import structlog

from gateway.cluster.chunk_sets import stretch_named
from gateway.cluster.counters import entry_of
from gateway.cluster.datasets import Counter
from gateway.cluster.directory import Directory
from gateway.cluster.holdings import Holdings
from gateway.cluster.members import Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link, Script, Word

_BATCH = 500
# Keys of Redis that one step of SCAN comes to.
_SCANNED = 1000
# Entries compared a second: after Redis has lost them, and else.
FAST = 20_000
SLOW = 1_000
_EVERY_SECONDS = 900.0
_RETRY_SECONDS = 2.0
# How often it is looked whether all is counted that is to be compared.
_WAIT_SECONDS = 0.05
GONE_SECONDS = 60.0

log = structlog.get_logger()

# Of the keys that SCAN comes to: those with a field of ARGV[3]'s, and those with fields of none of
# the members ARGV[5..] (where there are any). KEYS[1] says which part of a Redis Cluster is meant.
_LOOK_THROUGH = Script("""
local members = {}
for at = 5, #ARGV do members[ARGV[at]] = true end
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[4], 'TYPE', 'hash')
local mine, others = {}, {}
for _, key in ipairs(page[2]) do
  if redis.call('HEXISTS', key, ARGV[3]) == 1 then mine[#mine + 1] = key end
  if #ARGV > 4 then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      if not members[field] then others[#others + 1] = {key, field} end
    end
  end
end
return {page[1], mine, others, redis.call('DBSIZE')}
""")

# Takes folders out of their bucket's list where nobody has bytes under them, and the bucket out of
# the buckets where no folder is left.
_TIDY = Script("""
for at = 2, #ARGV do
  if redis.call('EXISTS', KEYS[at + 1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[at]) end
end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
return 0
""")


class Reconciliation:
    """Repairs this node's part of the directory. `now` is monotonic."""

    def __init__(
        self,
        link: Link,
        members: Members,
        holdings: Holdings,
        directory: Directory,
        rebuilding: Rebuilding,
        *,
        now: Callable[[], float] = time.monotonic,
        every_seconds: float = _EVERY_SECONDS,
        gone_seconds: float = GONE_SECONDS,
    ) -> None:
        self._link = link
        self._members = members
        self._holdings = holdings
        self._directory = directory
        self._rebuilding = rebuilding
        self._now = now
        self._every_seconds = every_seconds
        self._gone_seconds = gone_seconds
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._was_here = False
        self._missing: dict[bytes, float] = {}
        self._again: asyncio.TimerHandle | None = None
        # Passes made, and entries they had to repair.
        self.passes = 0
        self.repaired = 0
        directory.on_behind = self._wanted.set
        members.on_change.append(self._members_changed)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._rebuilding.end("directory")

    def want(self) -> None:
        """A pass is to begin soon."""
        self._wanted.set()

    def _members_changed(self) -> None:
        here = self._members.here() is not None
        if here and not self._was_here:
            # Others may have cleared away what was this node's.
            self._wanted.set()
        self._was_here = here

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_seconds):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            fast = self._wanted.is_set()
            self._wanted.clear()
            try:
                await self.once(per_second=FAST if fast else SLOW)
            except CoordinatorUnavailable as error:
                log.info("reconciliation put off", reason=str(error))
                self._wanted.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def once(self, *, per_second: int = FAST) -> None:
        """One pass. CoordinatorUnavailable."""
        while not self._holdings.whole:
            if not self._holdings.stretches and not self._holdings.bytes:
                # There is no disk: nothing is held, and that is to be said.
                break
            await asyncio.sleep(_WAIT_SECONDS)
        before = self.repaired
        try:
            await self._tell(per_second)
            await self._look_through(per_second)
        finally:
            self._rebuilding.end("directory")
        self.passes += 1
        if self.repaired != before:
            log.info("directory repaired", entries=self.repaired - before)

    async def _tell(self, per_second: int) -> None:
        """Sees to it that all that is held is in the directory."""
        stretches, counters = list(self._holdings.stretches), list(self._holdings.bytes)
        total = len(stretches) + len(counters)
        directory = self._directory
        for start in range(0, len(stretches), _BATCH):
            self._rebuilding.step("directory", start, 2 * total)
            some = stretches[start : start + _BATCH]
            names = [directory.stretch_key(key) for key in some]
            found = await self._fields(names)
            repairs = [
                directory.writing(name, directory.entry(key))
                for key, name, there in zip(some, names, found, strict=True)
                if (there or b"") != directory.entry(key)
            ]
            await self._repair(repairs, len(repairs))
            await asyncio.sleep(len(some) / per_second)
        for start in range(0, len(counters), _BATCH):
            self._rebuilding.step("directory", len(stretches) + start, 2 * total)
            await self._tell_counters(counters[start : start + _BATCH])
            await asyncio.sleep(_BATCH / per_second)

    async def _tell_counters(self, counters: Sequence[Counter]) -> None:
        directory = self._directory
        found = await self._fields([directory.counters.key(each) for each in counters])
        wrong = [
            counter
            for counter, there in zip(counters, found, strict=True)
            if (there or b"") != directory.count(counter)
        ]
        buckets = {(each.origin, each.bucket): None for each in counters if directory.count(each)}
        await self._repair([*directory.counting(wrong), *directory.listing(buckets)], len(wrong))

    async def _fields(self, names: Sequence[str]) -> list[bytes | None]:
        me = self._members.me
        return await self._link.commands([("HGET", name, me) for name in names])

    async def _repair(self, commands: Sequence[tuple[Word, ...]], entries: int) -> None:
        await self._link.commands(commands)
        self.repaired += entries

    async def _look_through(self, per_second: int) -> None:
        """Sees to it that nothing is in the directory that is not held."""
        members = [each.id for each in self._members.all()]
        first = bool(members) and members[0] == self._members.me
        anchor = self._link.key("dir", "token")
        pattern = self._link.key("dir", "[vb]", "*")
        cursor: bytes | str = "0"
        seen = 0
        while True:
            words: list[Word] = [cursor, pattern, self._members.me, _SCANNED]
            words += members if first else ()
            found = await self._link.script(_LOOK_THROUGH, [anchor], words)
            cursor, mine, others, size = found
            await self._clear_mine(mine)
            await self._clear_others(others)
            seen = min(seen + _SCANNED, size)
            self._rebuilding.step("directory", size + seen, 2 * size)
            if cursor == b"0":
                break
            await asyncio.sleep(_SCANNED / per_second)
        if first:
            await self._tidy()
            self._look_again()

    def _look_again(self) -> None:
        """There is to be another pass once those that are missing have been so for long enough."""
        now = self._now()
        waits = [self._gone_seconds - (now - since) for since in self._missing.values()]
        self._missing = {
            id_: since for id_, since in self._missing.items() if now - since < self._gone_seconds
        }
        if waits and max(waits) > 0:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(max(waits), self._wanted.set)

    async def _clear_mine(self, names: Sequence[bytes]) -> None:
        me = self._members.me
        wrong: list[tuple[Word, ...]] = [
            ("HDEL", name, me) for name in names if self._is_stale(name)
        ]
        await self._repair(wrong, len(wrong))

    def _is_stale(self, name: bytes) -> bool:
        """Whether nothing is held of what a key of the directory stands for."""
        kind, _, rest = name.decode("utf-8", "replace").partition(":dir:")[2].partition(":")
        if kind == "v":
            key = stretch_named(rest)
            return key is None or key not in self._holdings.stretches
        counter = _counter(rest)
        return counter is None or not self._holdings.bytes.get(counter)

    async def _clear_others(self, found: Sequence[tuple[bytes, bytes]]) -> None:
        now = self._now()
        members = {each.id.encode() for each in self._members.all()}
        wrong: list[tuple[Word, ...]] = []
        for name, id_ in found:
            if id_ in members:
                self._missing.pop(id_, None)
            elif now - self._missing.setdefault(id_, now) >= self._gone_seconds:
                wrong.append(("HDEL", name, id_))
        await self._repair(wrong, len(wrong))

    async def _tidy(self) -> None:
        """Strikes folders, and buckets, of which nobody holds anything any more."""
        counters = self._directory.counters
        for origin, bucket in await counters.buckets():
            after, key = b"", counters.folders_key(origin, bucket)
            while True:
                some = await counters.folders(origin, bucket, after, _BATCH)
                names = [counters.key(Counter(origin, bucket, folder)) for folder in some]
                keys, words = [counters.buckets_key, key, *names], [entry_of(origin, bucket), *some]
                await self._link.script(_TIDY, keys, words)
                if len(some) < _BATCH:
                    break
                after = some[-1] + b"\0"


def _counter(rest: str) -> Counter | None:
    """The counter that a key `ORIGIN:BUCKET:FOLDER` is of."""
    origin, _, rest = rest.partition(":")
    bucket, _, name = rest.rpartition(":")
    try:
        folder = urlsafe_b64decode(name + "=" * (-len(name) % 4))
    except ValueError:
        return None
    return Counter(origin, bucket.encode(), folder)
