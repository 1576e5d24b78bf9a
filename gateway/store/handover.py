"""Hands over what this node holds and nobody else does, before it leaves: to whom it will belong.

The others bring it in from here, at their pace, behind everything that somebody waits for. What is
not over by the deadline is left: the cache is disposable, and it costs the origin a second read.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gateway.cluster.directory import Directory
from gateway.cluster.leaving import PASSES, Batch, Pass, batches, heirs, is_due
from gateway.cluster.members import Member, Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.config import NodeConfig
from gateway.errors import TierUnavailable
from gateway.model.objects import Span
from gateway.tiers.disk import DiskTier

# Looked at together, and asked to be taken at one time.
_PIECE_SPANS = 1000
_AT_A_TIME = 4
RATE_BYTES_A_SECOND = 512 * 1024**2
DEADLINE_SECONDS = 600.0
# Until every node knows that this one is about to leave.
_KNOWN_SECONDS = 5.0

Ask = Callable[[Member, Sequence[Span]], Awaitable[int]]

log = structlog.get_logger()


class Handover:
    """One handing over. `ask` has a member take spans."""

    def __init__(
        self,
        disk: DiskTier,
        directory: Directory,
        members: Members,
        node: NodeConfig,
        rebuilding: Rebuilding,
        ask: Ask,
        *,
        rack_aware: bool,
        deadline_seconds: float = DEADLINE_SECONDS,
        rate_bytes_a_second: float = RATE_BYTES_A_SECOND,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._members = members
        self._node = node
        self._rebuilding = rebuilding
        self._ask = ask
        self._rack_aware = rack_aware
        self._deadline_seconds = deadline_seconds
        self._rate = rate_bytes_a_second
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._done_bytes = 0
        self.handed_over = 0
        self.left = 0

    async def run(self) -> None:
        """Returns once all is handed over, or the deadline has passed."""
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_seconds):
                await self._until_known()
                for which in PASSES:
                    await self._pass(which)
        except TimeoutError:
            log.warning("handing over ends early", seconds=self._deadline_seconds)
        finally:
            self._rebuilding.end("handing-over")
        log.info(
            "handed over",
            spans=self.handed_over,
            left=self.left,
            seconds=round(time.monotonic() - begun, 1),
        )

    async def _until_known(self) -> None:
        deadline = time.monotonic() + _KNOWN_SECONDS
        while time.monotonic() < deadline:
            here = self._members.here()
            if here is None or here.state == "draining":
                return
            await asyncio.sleep(0.05)

    async def _pass(self, which: Pass) -> None:
        total = 2 * max(1, self._disk.usage().bytes)
        async with asyncio.TaskGroup() as tasks:
            async for spans in self._disk.held(_PIECE_SPANS):
                due = await self._due(spans, which)
                for batch in self._batches(due):
                    await self._turns.acquire()
                    tasks.create_task(self._hand(batch))
                self._done_bytes += sum(each.size_bytes for each in spans)
                self._rebuilding.step("handing-over", self._done_bytes, total)

    def _batches(self, due: Sequence[Span]) -> list[Batch]:
        me, rack = self._node.id, self._node.rack
        members = self._members.all()
        near = heirs(members, me, rack, rack_aware=self._rack_aware)
        found = batches(due, near)
        # Where nothing tells who holds a small object, only its homes are asked for it: the first
        # home of all racks must have it, or would ask the origin.
        small = [each for each in due if self._disk.is_small(each)]
        first = batches(small, heirs(members, me, rack, rack_aware=False))
        return found + [each for each in first if each.member not in near]

    async def _due(self, spans: Sequence[Span], which: Pass) -> list[Span]:
        listed = [each for each in spans if not self._disk.is_small(each)]
        try:
            holders = await self._directory.holders(listed)
        except TierUnavailable as error:
            # Who else holds it is not known: rather too much.
            log.info("handing over unasked", reason=str(error))
            holders = {}
        return [
            each
            for each in spans
            if is_due(holders.get((each.version.digest, each.number)), self._node.rack, which)
        ]

    async def _hand(self, batch: Batch) -> None:
        begun = time.monotonic()
        try:
            taken = await self._ask(batch.member, batch.spans)
        except TierUnavailable as error:
            log.info("not handed over", peer=batch.member.id, reason=str(error))
            taken = 0
        else:
            wanted = batch.size_bytes / self._rate * _AT_A_TIME
            await asyncio.sleep(max(0.0, wanted - (time.monotonic() - begun)))
        finally:
            self._turns.release()
        self.handed_over += taken
        self.left += len(batch.spans) - taken
