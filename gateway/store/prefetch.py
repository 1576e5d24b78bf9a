"""Works prefetches off: walks them, shares out what they find, and brings in what falls to this
node.

Any node may walk a job, one at a time; where it stands is in the queue. What it finds goes to the
homes, which bring it in behind everything that somebody waits for (`courtesy.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from gateway.cluster.chunk_sets import decode_bits
from gateway.cluster.jobs import Claim, Jobs, Page, Walk
from gateway.cluster.members import Member, Members
from gateway.cluster.placement import homes
from gateway.cluster.warming import (
    Found,
    Item,
    NobodyServes,
    Progress,
    Spec,
    decode_item,
    item_of,
    share_out,
    size_of,
    targets,
)
from gateway.config import CacheConfig, NodeConfig
from gateway.errors import FeedrackError, S3Error, TierUnavailable
from gateway.model.objects import ObjectVersion
from gateway.model.reserved import PACKS
from gateway.store.bringing import Bringing

# Items that one node works on at a time.
_WORKERS = 4
_IDLE_SECONDS = 1.0
_RETRY_SECONDS = 2.0
_KEYS_A_PAGE = 64
_SHARDS_A_PAGE = 500
# How often, in chunks, it is looked whether a job still runs.
_LOOK_CHUNKS = 4

log = structlog.get_logger()


class Prefetcher:
    """A node's part in prefetching. `members` None: there is no cluster."""

    def __init__(
        self,
        jobs: Jobs,
        service: Bringing,
        node: NodeConfig,
        cache: CacheConfig,
        *,
        members: Members | None = None,
        rack_aware: bool = True,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._jobs = jobs
        self._service = service
        self._node = node
        self._cache = cache
        self._members = members
        self._rack_aware = rack_aware
        self._idle_seconds = idle_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._resting = False
        self._begun = False
        # Whether the answer to a claim was lost, and what this node is about to claim or has.
        self._claims_lost = False
        self._in_hand = 0

    def start(self) -> None:
        works = (self._walk_on, *[self._work] * _WORKERS)
        self._tasks = [asyncio.create_task(self._again_and_again(each)) for each in works]
        self._tasks.append(asyncio.create_task(self._look_out()))

    async def close(self) -> None:
        """Ends; what this node has claimed, others take over, or its next run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rest(self) -> None:
        """Takes on nothing more: this node is about to leave."""
        self._resting = True

    # What the operator asks for
    async def create(self, spec: Spec, priority: int) -> str:
        """A job's id. NobodyServes, TooManyJobs, NoSuchBucket, TierUnavailable."""
        known = self._serving()
        for kind, names, there in (
            ("rack", spec.racks, {each.rack for each in known}),
            ("node", spec.nodes, {each.id for each in known}),
        ):
            for name in names:
                if name not in there:
                    raise NobodyServes(f"nobody of {kind} {name!r} serves just now")
        for bucket in {spec.bucket, *(bucket for bucket, _ in spec.keys)} - {""}:
            await self._service.head_bucket(bucket)
        if not spec.racks and not spec.nodes:
            spec = _in_rack(spec, self._node.rack)
        id_ = await self._jobs.create(spec, priority)
        self._news.set()
        return id_

    async def all(self, job: str | None = None) -> list[Progress]:
        """Those that run, and those that have ended within the hour; `job`: of those, what that job
        of the scheduler's is for. TierUnavailable."""
        found = await self._jobs.all()
        return found if job is None else [each for each in found if each.spec.job == job]

    async def get(self, id_: str) -> Progress | None:
        """How far a job is; None where it is not known. TierUnavailable."""
        return await self._jobs.get(id_)

    async def set_priority(self, id_: str, priority: int) -> bool:
        """Whether the job runs, and now has that priority. TierUnavailable."""
        return await self._jobs.set_priority(id_, priority)

    async def cancel(self, id_: str) -> bool:
        """Whether the job ran, and no longer does. TierUnavailable."""
        return await self._jobs.cancel(id_)

    async def _again_and_again(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Does a piece of work after the other, for as long as there is any."""
        while True:
            try:
                busy = not self._resting and await work()
            except TierUnavailable as error:
                log.info("prefetch put off", reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except FeedrackError as error:
                # Of one job; the others must not end with it.
                log.warning("prefetch put off", reason=repr(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not busy:
                self._news.clear()
                await self._news.wait()

    async def _look_out(self) -> None:
        """One question a node and moment, whatever its size: while no job runs it is all that
        prefetching asks of Redis."""
        while True:
            await asyncio.sleep(self._idle_seconds)
            with suppress(TierUnavailable):
                if not self._begun or await self._jobs.any():
                    self._news.set()

    # Walking
    async def _walk_on(self) -> bool:
        if not self._begun:
            await self._jobs.begin()
            self._begun = True
        serving = self._serving()
        walk = await self._jobs.walk([each.id for each in serving])
        if walk is None:
            return False
        groups = targets(walk.spec, serving, self._node.rack, rack_aware=self._rack_aware)
        if walk.orphans:
            await self._share_out_anew(walk, groups)
        else:
            await self._jobs.walked(walk, await self._page(walk, groups))
        self._news.set()
        return True

    async def _page(self, walk: Walk, groups: Sequence[Sequence[Member]]) -> Page:
        try:
            if walk.spec.keys:
                found, failed, position, last = await self._next_keys(walk)
            else:
                found, position, last = await self._next_of_dataset(walk)
                failed = 0
        except S3Error as error:
            log.warning("prefetch ends early", job=walk.job, reason=str(error))
            return Page(walk.position, True, (), 0, 0, 0)
        items: list[tuple[str, Item]] = []
        number, size_bytes = walk.number, 0
        for each in found:
            shares = self._shares(each, groups)
            object_id = number
            number += 1
            for member, first, bits in shares:
                items.append((member.id, item_of(number, object_id, each, member, first, bits)))
                number += 1
                size_bytes += self._size(first, bits, each.size_bytes, each.key)
            if not shares:
                failed += 1
        return Page(position, last, items, len(found) + failed, size_bytes, failed)

    async def _next_keys(self, walk: Walk) -> tuple[list[Found], int, bytes, bool]:
        start = int(walk.position or b"0")
        some = walk.spec.keys[start : start + _KEYS_A_PAGE]
        answers = await asyncio.gather(
            *(self._service.version_of(bucket, key) for bucket, key in some),
            return_exceptions=True,
        )
        found: list[Found] = []
        failed = 0
        for (bucket, _), answer in zip(some, answers, strict=True):
            if isinstance(answer, TierUnavailable):
                raise answer
            if isinstance(answer, BaseException) and not isinstance(answer, FeedrackError):
                raise answer
            if isinstance(answer, BaseException):
                failed += 1
            elif answer.size_bytes:
                found.append(_found(bucket, answer))
        stop = start + len(some)
        return found, failed, b"%d" % stop, stop >= len(walk.spec.keys)

    async def _next_of_dataset(self, walk: Walk) -> tuple[list[Found], bytes, bool]:
        bucket, prefix = walk.spec.bucket, walk.spec.prefix
        kind, place = walk.position[:1], walk.position[1:]
        if kind != b"k":
            start = int(place or b"0")
            shards = await self._service.shards_of(bucket, prefix)
            some = shards[start : start + _SHARDS_A_PAGE]
            if some:
                found = [_found(bucket, each) for each in some]
                return found, b"s%d" % (start + len(some)), False
            place = b""
        after = place.decode("utf-8", "surrogatepass")
        versions, following = await self._service.page_of(bucket, prefix, after)
        position = b"k" + (following or after).encode("utf-8", "surrogatepass")
        return [_found(bucket, each) for each in versions], position, following is None

    async def _share_out_anew(self, walk: Walk, groups: Sequence[Sequence[Member]]) -> None:
        items: list[tuple[str, Item]] = []
        number, lost = walk.number, 0
        for raw in walk.orphans:
            item = decode_item(raw)
            try:
                where = self._service.bucket(item.bucket)
            except S3Error:
                # It has been taken out of the configuration since.
                lost += 1
                continue
            found = Found(
                item.bucket,
                item.key,
                item.etag,
                item.size_bytes,
                where.origin.name,
                where.origin_bucket,
            )
            same_rack = [group for group in groups if any(each.rack == item.rack for each in group)]
            shares = self._shares(found, same_rack[:1] or groups[:1], wanted=tuple(item.chunks))
            for member, first, bits in shares:
                items.append(
                    (member.id, item_of(number, item.object_id, found, member, first, bits))
                )
                number += 1
            lost += not shares
        await self._jobs.shared_out(walk, items, lost)

    def _shares(
        self,
        found: Found,
        groups: Sequence[Sequence[Member]],
        *,
        wanted: Sequence[int] | None = None,
    ) -> list[tuple[Member, int, int]]:
        whole = _is_shard(found.key)
        return share_out(
            found,
            groups,
            homes,
            chunk_bytes=found.size_bytes if whole else self._cache.chunk_size,
            small_bytes=found.size_bytes if whole else self._cache.small_object_limit,
            wanted=wanted,
        )

    # Bringing in
    async def _work(self) -> bool:
        if not self._begun:
            return False
        if self._claims_lost and not await self._look_for_lost():
            await asyncio.sleep(_RETRY_SECONDS)
            return True
        self._in_hand += 1
        try:
            return await self._work_on_next()
        finally:
            self._in_hand -= 1

    async def _look_for_lost(self) -> bool:
        """Gives back what this node may have claimed without hearing of it, once it has nothing in
        hand; whether it has."""
        if self._in_hand:
            return False
        self._in_hand += 1
        try:
            await self._jobs.begin()
            self._claims_lost = False
        finally:
            self._in_hand -= 1
        return True

    async def _work_on_next(self) -> bool:
        try:
            claims = await self._jobs.claim(1)
        except TierUnavailable:
            self._claims_lost = True
            raise
        for claim in claims:
            done_bytes = 0
            try:
                done_bytes = await self._bring(claim)
            except FeedrackError as error:
                log.info("not prefetched", key=claim.item.key, reason=str(error))
            item = claim.item
            size_bytes = self._size(item.first, decode_bits(item.bits), item.size_bytes, item.key)
            done_bytes = min(done_bytes, size_bytes)
            await self._finish(claim, done_bytes, size_bytes - done_bytes)
        return bool(claims)

    async def _finish(self, claim: Claim, done_bytes: int, failed_bytes: int) -> None:
        """Says that an item is over until it has been heard; twice counts once."""
        while True:
            try:
                await self._jobs.finish(claim, done_bytes=done_bytes, failed_bytes=failed_bytes)
            except TierUnavailable as error:
                log.info("an item's end not told yet", reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _bring(self, claim: Claim) -> int:
        """Brings an item in; the bytes that are here. Errors of the service."""
        item = claim.item
        chunks = tuple(item.chunks)
        spans = await self._service.spans_to_bring(
            item.bucket, item.key, item.etag, item.size_bytes, chunks
        )
        bucket = self._service.bucket(item.bucket)
        done_bytes = 0
        for count, each in enumerate(spans, start=1):
            if await self._service.bring_in(bucket, each):
                # A shard counts as the object it was brought in for.
                done_bytes += item.size_bytes if len(spans) == 1 == len(chunks) else each.size_bytes
            if not count % _LOOK_CHUNKS and not await self._jobs.runs(claim.job):
                break
        return done_bytes

    def _size(self, first: int, bits: int, size_bytes: int, key: str) -> int:
        if _is_shard(key):
            return size_bytes
        return size_of(
            first,
            bits,
            size_bytes,
            chunk_bytes=self._cache.chunk_size,
            small_bytes=self._cache.small_object_limit,
        )

    def _serving(self) -> Sequence[Member]:
        if self._members is not None:
            return self._members.serving()
        node = self._node
        return (
            Member(
                id=node.id,
                incarnation="",
                rack=node.rack,
                zone=node.zone,
                peers="",
                s3="",
                admin="",
                capacity_bytes=1,
                version="",
            ),
        )


def _in_rack(spec: Spec, rack: str) -> Spec:
    return Spec(spec.bucket, spec.prefix, spec.keys, (rack,), (), spec.job)


def _found(bucket: str, version: ObjectVersion) -> Found:
    ref = version.ref
    return Found(bucket, ref.key, version.etag, version.size_bytes, ref.origin, ref.bucket)


def _is_shard(key: str) -> bool:
    return key.startswith(PACKS)
