"""The directory: who holds what, in Redis. This node's part of it is kept current from here, in
batches, and the others' part is asked.

    dir:token              drawn anew after Redis was emptied: then everything is told again
    dir:v:STRETCH          hash: node → which chunks of that stretch of a version it holds
    dir:b:…, dir:f:…, dir:buckets   bytes by folder (`counters.py`)

Every node writes its own fields alone, and each write says all there is to say, so that one that is
lost, repeated or late does no harm. A rack holds what one of its nodes does. Fields of nodes that
are no members count for nothing (`reconcile.py` clears them away).

Nothing here is in the way of a read: all that is wrong with Redis makes the directory say less.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from msgspec import Struct

from gateway.cluster.chunk_sets import bit_of, decode_bits, encode_bits, stretch_key, stretch_name
from gateway.cluster.counters import Counters, entry_of
from gateway.cluster.datasets import Counter, cover
from gateway.cluster.holdings import Holdings
from gateway.cluster.members import Member, Members
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link, Word
from gateway.index.records import raw_text
from gateway.model.objects import Span

BATCH_SECONDS = 0.5
_BATCH_CHANGES = 1000
# How often Redis is looked at where there is nothing to tell, and how long it is left alone after
# it has failed.
_LOOK_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# For how long an answer is used again, and how many are.
_ANSWER_SECONDS = 3.0
_MOST_ANSWERS = 4096
# A question is part of a miss: the origin is asked instead once it takes longer.
_PATIENCE_SECONDS = 0.5

log = structlog.get_logger()


class Held(Struct, frozen=True):
    """Bytes of a dataset by node. `exact`: the counters tell them without a remainder."""

    nodes: Mapping[str, int]
    exact: bool


class Directory:
    """This node's view of it. `on_behind`: what it says of this node must be compared with what
    the node holds. `now` is monotonic."""

    def __init__(
        self,
        link: Link,
        members: Members,
        holdings: Holdings,
        *,
        now: Callable[[], float] = time.monotonic,
        batch_seconds: float = BATCH_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._link = link
        self.counters = Counters(link, members)
        self._members = members
        self._holdings = holdings
        self._now = now
        self._batch_seconds = batch_seconds
        self._look_seconds = look_seconds
        self.on_behind: Callable[[], None] = lambda: None
        self._token: bytes | None = None
        self._at_rest = True
        self._news = asyncio.Event()
        self._many = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._answers: OrderedDict[bytes, tuple[float, dict[str, int]]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[dict[str, int]]] = {}
        holdings.on_change = self._changed

    def start(self) -> None:
        self._task = asyncio.create_task(self._tell_on())

    async def close(self) -> None:
        """Tells what waits, if Redis answers, and ends."""
        tasks = [*self._asking.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._task is not None and self._holdings.changes:
            try:
                await self._tell()
            except CoordinatorUnavailable as error:
                log.info("directory not told", reason=str(error))

    # Asking
    async def racks_holding(self, span: Span) -> Sequence[str]:
        """The racks, in the order of their nodes' ids, of which another node holds the chunk or
        shard; none where that is not known, or Redis is away."""
        bit = bit_of(span.number)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                nodes = await self._nodes(stretch_key(span.version.digest, span.number))
        except (CoordinatorUnavailable, TimeoutError):
            return ()
        members = (self._members.get(id_) for id_, bits in sorted(nodes.items()) if bits & bit)
        return tuple(dict.fromkeys(each.rack for each in members if each is not None))

    async def holders(self, spans: Sequence[Span]) -> dict[tuple[bytes, int], list[Member]]:
        """The other members that hold these chunks and shards, by digest and number, asked now.
        CoordinatorUnavailable."""
        keys = [stretch_key(each.version.digest, each.number) for each in spans]
        names = list(dict.fromkeys(keys))
        raw = await self._link.commands([("HGETALL", self.stretch_key(key)) for key in names])
        found = dict(zip(names, map(self._others, raw), strict=True))
        return {
            (each.version.digest, each.number): [
                member
                for id_, bits in found[key].items()
                if bits & bit_of(each.number) and (member := self._members.get(id_)) is not None
            ]
            for each, key in zip(spans, keys, strict=True)
        }

    async def dataset(
        self, origin: str, bucket: str, prefix: str, packs: Sequence[str] = ()
    ) -> Held:
        """Bytes that the members hold of the keys under a prefix, and in the packs at the roots
        `packs`. CoordinatorUnavailable."""
        raw_bucket, wanted = raw_text(bucket), raw_text(prefix)
        folders = self.counters.folders_key(origin, raw_bucket)
        covered = cover(await self._link.command("ZRANGE", folders, 0, -1), wanted)
        parts = [*covered.whole, *map(raw_text, packs)]
        found = await self.counters.total([Counter(origin, raw_bucket, each) for each in parts])
        return Held({each.id: found.get(each.id, 0) for each in self._members.all()}, covered.exact)

    async def _nodes(self, key: bytes) -> dict[str, int]:
        """What other nodes hold of a stretch, as of a few seconds ago; askers share an answer."""
        known = self._answers.get(key)
        if known is not None and self._now() - known[0] < _ANSWER_SECONDS:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._look_up(key))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key: bytes, task: "asyncio.Task[dict[str, int]]") -> None:
        del self._asking[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._answers.pop(key, None)
        self._answers[key] = (self._now(), task.result())
        if len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)

    async def _look_up(self, key: bytes) -> dict[str, int]:
        return self._others(await self._link.command("HGETALL", self.stretch_key(key)))

    def _others(self, raw: object) -> dict[str, int]:
        """What a stretch's fields say of the other nodes."""
        me = self._members.me
        return {id_: decode_bits(value) for id_, value in _pairs(raw).items() if id_ != me}

    # Telling
    def entry(self, key: bytes) -> bytes:
        """What is to stand in the directory for a stretch; empty: nothing."""
        return encode_bits(self._holdings.stretches.get(key, 0))

    def count(self, counter: Counter) -> bytes:
        """What is to stand there for a counter; empty: nothing."""
        size_bytes = self._holdings.bytes.get(counter, 0)
        return b"%d" % size_bytes if size_bytes else b""

    def writing(self, key: str, entry: bytes) -> tuple[Word, ...]:
        """The command that makes `entry` this node's field of a key."""
        me = self._members.me
        return ("HSET", key, me, entry) if entry else ("HDEL", key, me)

    def counting(self, counters: Iterable[Counter]) -> list[tuple[Word, ...]]:
        """The commands that make counters say what is held."""
        commands: list[tuple[Word, ...]] = []
        buckets: dict[tuple[str, bytes], None] = {}
        for each in counters:
            entry = self.count(each)
            commands.append(self.writing(self.counters.key(each), entry))
            if entry:
                folders = self.counters.folders_key(each.origin, each.bucket)
                commands.append(("ZADD", folders, 0, each.folder))
                buckets[each.origin, each.bucket] = None
        # Behind its folders: a bucket without any is struck (`reconcile.py`).
        return commands + self.listing(buckets)

    def listing(self, buckets: Iterable[tuple[str, bytes]]) -> list[tuple[Word, ...]]:
        """The commands that make buckets known."""
        return [("SADD", self.counters.buckets_key, entry_of(*each)) for each in buckets]

    def stretch_key(self, key: bytes) -> str:
        return self._link.key("dir", "v", stretch_name(key))

    @property
    def told(self) -> bool:
        """Whether everything is told, or given up for a comparison."""
        return self._at_rest and not self._holdings.changes

    def _changed(self) -> None:
        self._at_rest = False
        self._news.set()
        if self._holdings.changes >= _BATCH_CHANGES:
            self._many.set()

    async def _tell_on(self) -> None:
        failing = False
        while True:
            self._at_rest = not self._holdings.changes
            await _first(self._news, self._look_seconds)
            if self._news.is_set():
                await _first(self._many, self._batch_seconds)
            self._news.clear()
            self._many.clear()
            try:
                await self._tell()
            except CoordinatorUnavailable as error:
                self._holdings.forget_untold()
                # What a batch had in hand may have been told or not.
                self._holdings.overflowed = True
                if not failing:
                    log.warning("directory not told", reason=str(error))
                failing = True
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if failing:
                log.info("directory told again")
            failing = False
            if self._holdings.overflowed:
                self._holdings.overflowed = False
                self.on_behind()

    async def _tell(self) -> None:
        token = self._link.key("dir", "token")
        while True:
            stretches, counters = self._holdings.take(_BATCH_CHANGES)
            commands: list[tuple[Word, ...]] = [
                ("SETNX", token, secrets.token_hex(8)),
                ("GET", token),
                *(self.writing(self.stretch_key(key), self.entry(key)) for key in stretches),
            ]
            commands += self.counting(counters)
            answers = await self._link.commands(commands)
            self._look_at(answers[1])
            if not self._holdings.changes:
                return

    def _look_at(self, token: bytes | None) -> None:
        if token == self._token or token is None:
            return
        if self._token is not None:
            log.warning("directory lost: told anew")
        self._token = token
        self.on_behind()


def _pairs(raw: object) -> dict[str, bytes]:
    """A hash, as either protocol gives it."""
    if isinstance(raw, Mapping):
        items = list(raw.items())
    else:
        assert isinstance(raw, list)  # noqa: S101 - RESP2
        items = list(zip(raw[::2], raw[1::2], strict=True))
    return {id_.decode("utf-8", "replace"): value for id_, value in items}


async def _first(event: asyncio.Event, seconds: float) -> None:
    """Returns once the event is set, or after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
