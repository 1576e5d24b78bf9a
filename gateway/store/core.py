"""What all parts of the object service share: the tables, the tiers and the write bracket."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from gateway.cluster.session import DOUBT_SECONDS
from gateway.cluster.writing import Change, Changes, Unshared
from gateway.config import CacheConfig
from gateway.errors import FeedrackError, S3Error
from gateway.model.objects import ObjectInfo, ObjectRef, Span
from gateway.store.buckets import Bucket, BucketTable
from gateway.store.fill import Filler
from gateway.store.versions import Ticket, VersionTable
from gateway.tiers.disk import DiskTier

log = structlog.get_logger()


class Core:
    """The collaborators of the service, and what every write must go through."""

    def __init__(
        self,
        *,
        buckets: BucketTable,
        disk: DiskTier,
        filler: Filler,
        versions: VersionTable,
        cache: CacheConfig,
        changes: Changes | None = None,
    ) -> None:
        self._buckets = buckets
        self._disk = disk
        self._filler = filler
        self._versions = versions
        self._cache = cache
        self._changes = changes or Unshared()
        self._background: set[asyncio.Task[None]] = set()

    def bucket(self, name: str) -> Bucket:
        """The bucket clients call `name`. NoSuchBucket where no origin could serve it."""
        return self._buckets.resolve(name)

    def buckets_over(self, origin: str, origin_bucket: str) -> tuple[Bucket, ...]:
        """The buckets by which clients see that one of an origin."""
        return self._buckets.seen(origin, origin_bucket)

    def fills(self) -> list[tuple[Span, int]]:
        """The spans on their way in, with the bytes each has."""
        return self._filler.under_way()

    async def close(self) -> None:
        """Ends what runs behind the answers; call when no request is in flight any more."""
        await self._filler.close()
        await self.settle()
        await self._changes.close()

    async def settle(self) -> None:
        """Waits for what runs behind the answers given so far."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    @asynccontextmanager
    async def _writing(self, bucket: Bucket, keys: Sequence[str]) -> AsyncIterator["Writing"]:
        """Brackets a write of `keys`: begun before the origin hears of it, ended on any exit. The
        origin must not make it visible before `Writing.settled` has returned."""
        refs = [bucket.written_ref(key) for key in dict.fromkeys(keys)]
        writing = Writing(self._versions, refs, self._changes.begin(refs))
        try:
            if bucket.immutable_to_some:
                # Only then is what the disk remembers ever believed unasked, so only then must
                # it be gone before the origin changes.
                for ticket in writing.tickets:
                    await self._disk.forget(ticket.ref)
            yield writing
            await writing.confirm()
        except BaseException as error:
            refused = isinstance(error, S3Error) and error.status < 500
            writing.end(unsure=not refused)
            raise
        writing.end()

    def _later(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Runs `work` behind the answer. Its failure costs speed only, so it is logged."""

        async def run() -> None:
            try:
                await work
            except FeedrackError as error:
                log.info("cache upkeep skipped", what=what, reason=str(error))

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _remember_on_disk(self, ref: ObjectRef, info: ObjectInfo) -> None:
        async def remember() -> None:
            # A write may have begun since, and what it made the disk forget must not come back.
            if self._versions.trusted(ref, None) == info:
                await self._disk.remember(ref, info)

        if info.cacheable and self._disk.accepting and self._disk.recall(ref) != info:
            self._later(remember(), "remember")


class Writing:
    """The tickets of one write and what it taught."""

    def __init__(self, versions: VersionTable, refs: Sequence[ObjectRef], change: Change) -> None:
        self._versions = versions
        self._change = change
        self._released = False
        self.tickets: list[Ticket] = [versions.begin_write(ref) for ref in refs]
        self._learned: dict[ObjectRef, ObjectInfo] = {}

    def learned(self, ref: ObjectRef, info: ObjectInfo | None) -> None:
        """Tells which version the write made, where the origin said all there is to know."""
        if info is not None:
            self._learned[ref.current] = info

    async def settled(self) -> None:
        """Returns once the origin may make it visible: nobody remembers what was there before.
        CoordinatorUnavailable."""
        await self._change.settled()
        self._released = True

    async def confirm(self) -> None:
        """Returns once the client may be answered. CoordinatorUnavailable."""
        if not self._released:
            # An empty body may not have been read at all.
            await self.settled()
        await self._change.confirm()

    def end(self, *, unsure: bool = False) -> None:
        """Ends the write, here and for the others. `unsure`: the origin may still do what it was
        asked for; nobody trusts anything of the keys until that is unlikely. Safe to call twice."""
        if unsure and self._released:
            self._change.end(after_seconds=DOUBT_SECONDS)
            asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._end_tickets)
        else:
            self._change.end()
            self._end_tickets()

    def _end_tickets(self) -> None:
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            self._versions.end_write(ticket, self._learned.get(ticket.ref))
