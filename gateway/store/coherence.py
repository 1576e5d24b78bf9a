"""What this node remembers, told of what other nodes change: `cluster.membership.Memory` over the
version table, the disk's heads and the packs."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from gateway.cluster.changes import Begun, ChangeId, Ended
from gateway.model.objects import ObjectRef
from gateway.store.versions import Ticket, VersionTable
from gateway.tiers.disk import DiskTier


class RemembersPacks(Protocol):
    """An origin that remembers something of its packs."""

    def changing(self, bucket: str, key: str) -> None:
        """Another node changes the key from now on."""
        ...

    def changed(self, bucket: str, key: str) -> None:
        """It has. What is in the log is to be looked at before it is believed again."""
        ...

    def missed(self) -> None:
        """Any key may have been changed."""
        ...


class Coherence:
    """Everything of a node that may be behind another node's write. `later` calls a function after
    so many seconds."""

    def __init__(
        self,
        versions: VersionTable,
        disk: DiskTier,
        packs: Mapping[str, RemembersPacks],
        *,
        immutable: Collection[tuple[str, str]],
        doubt_seconds: float,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._versions = versions
        self._disk = disk
        self._packs = packs
        # Origins and buckets of which what the disk remembers is believed unasked.
        self._immutable = immutable
        self._doubt_seconds = doubt_seconds
        self._later = later
        self._held: dict[ChangeId, list[Ticket]] = {}

    def begun(self, begun: Begun) -> Awaitable[None]:
        self._held.setdefault(begun.change, []).extend(
            self._versions.begin_write(ref) for ref in begun.refs
        )
        for ref in begun.refs:
            packs = self._packs.get(ref.origin)
            if packs is not None:
                packs.changing(ref.bucket, ref.key)
        return self._forget_on_disk(begun.refs)

    def ended(self, ended: Ended) -> None:
        tickets = self._held.pop(ended.change, [])
        if ended.abandoned and tickets:
            # What a dead writer has asked for may still happen.
            self._later(self._doubt_seconds, lambda: self._let_go(tickets))
        else:
            self._let_go(tickets)

    async def missed(self, refs: Sequence[ObjectRef] | None) -> None:
        self._versions.missed(refs)
        held, self._held = self._held, {}
        for tickets in held.values():
            self._let_go(tickets)
        for packs in self._packs.values():
            packs.missed()
        if refs is None:
            for origin, bucket in self._immutable:
                await self._disk.forget_heads(origin, bucket)
        else:
            await self._forget_on_disk(refs)

    async def _forget_on_disk(self, refs: Sequence[ObjectRef]) -> None:
        for ref in refs:
            if (ref.origin, ref.bucket) in self._immutable:
                await self._disk.forget(ref)

    def _let_go(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ref = ticket.ref
            packs = self._packs.get(ref.origin)
            if packs is not None:
                packs.changed(ref.bucket, ref.key)
            self._versions.end_write(ticket, None)
