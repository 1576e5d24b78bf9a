"""The log of overrides: what is written over a pack is in it before the write is answered.

    write at the origin ── append, under If-None-Match ── taken into the view ── answer

Writes that come together go into one record. Which of two writes of one key was the last the origin
alone knows where they overlap: such a record is `unsure`, and listings ask. A write whose record
cannot be appended is not acknowledged; what it did at the origin, the next pack finds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from gateway.errors import (
    ConditionalRequestConflict,
    FeedrackError,
    NoSuchKey,
    PreconditionFailed,
    TierUnavailable,
)
from gateway.model.body import BytesBody
from gateway.model.conditions import WriteConditions
from gateway.tiers.packed.known import Pack
from gateway.tiers.packed.looking import read_whole
from gateway.tiers.protocol import Origin
from packer.format import (
    Override,
    OverrideBatch,
    OverrideError,
    decode_overrides,
    encode_overrides,
)

_MOST_RECORDS = 1000
_CONFLICT_SECONDS = 0.05
# So often in a row "another write of that name is under way" is believed.
_MOST_CONFLICTS = 100
_ABSENT = WriteConditions(if_none_match_any=True)
_JSON = {"content-type": "application/json"}


Mixed = Callable[[str], bool]


class _Flight:
    def __init__(self) -> None:
        self.count = 0
        self.mixed = False
        self.alone = False
        self.over = asyncio.Event()


class Flights:
    """Which keys are being written, and whether two writes of one overlap."""

    def __init__(self) -> None:
        self._flights: dict[tuple[str, str], _Flight] = {}

    @asynccontextmanager
    async def of(
        self, bucket: str, keys: Collection[str], *, alone: bool = False
    ) -> AsyncIterator[Mixed]:
        """Stands for a write of `keys`, each named once, while it lasts; says of each whether
        another write of it was under way meanwhile. `alone`: waits until there is none, and keeps
        others waiting."""
        while (busy := self._busy(bucket, keys, alone=alone)) is not None:
            await busy.over.wait()
        entered = {key: self._enter((bucket, key)) for key in keys}
        for flight in entered.values():
            flight.alone = alone
        try:
            yield lambda key: entered[key].mixed
        finally:
            for key, flight in entered.items():
                flight.count -= 1
                if not flight.count:
                    del self._flights[bucket, key]
                    flight.over.set()

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """The keys under a prefix that are being written."""
        return [key for where, key in self._flights if where == bucket and key.startswith(prefix)]

    def _busy(self, bucket: str, keys: Collection[str], *, alone: bool) -> _Flight | None:
        """A write that must end before one of these may begin."""
        for key in keys:
            flight = self._flights.get((bucket, key))
            if flight is not None and (alone or flight.alone):
                return flight
        return None

    def _enter(self, name: tuple[str, str]) -> _Flight:
        flight = self._flights.setdefault(name, _Flight())
        flight.count += 1
        flight.mixed = flight.mixed or flight.count > 1
        return flight


class OverrideLog:
    """Appends to the log of one pack."""

    def __init__(self, origin: Origin, pack: Pack, node: str) -> None:
        self._origin = origin
        self._pack = pack
        self._node = node
        self._waiting: list[tuple[list[Override], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, overrides: list[Override]) -> None:
        """Returns once they are in the log and in the view. TierUnavailable, S3Error."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((overrides, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        # A client that leaves does not take back what its write did.
        await asyncio.shield(future)

    async def close(self) -> None:
        """Waits for what is being appended for clients that have left."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = self._take()
                try:
                    await self._write([record for records, _ in taken for record in records])
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    # Nobody asked for a record of the log by name.
                    known = isinstance(error, FeedrackError) and not isinstance(error, NoSuchKey)
                    failure = error if known else TierUnavailable(f"log of overrides: {error!r}")
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(failure)
                            # Whoever left does not collect it.
                            future.exception()
                else:
                    for _, future in taken:
                        if not future.done():
                            future.set_result(None)
        finally:
            self._task = None

    def _take(self) -> list[tuple[list[Override], "asyncio.Future[None]"]]:
        """The next writes that go together."""
        taken: list[tuple[list[Override], asyncio.Future[None]]] = []
        records = 0
        while self._waiting and (not taken or records + len(self._waiting[0][0]) <= _MOST_RECORDS):
            entry = self._waiting.pop(0)
            records += len(entry[0])
            taken.append(entry)
        return taken

    async def _write(self, records: list[Override]) -> None:
        pack = self._pack
        batch = OverrideBatch(node=self._node, records=tuple(records))
        body = encode_overrides(batch)
        conflicts = 0
        while True:
            async with pack.turn:
                sequence = pack.overrides.through + 1
                ref = pack.ref(pack.place.override(sequence))
                try:
                    await self._origin.put(ref, BytesBody(body), _JSON, _ABSENT)
                except ConditionalRequestConflict:
                    # AWS: another write of that name is under way. It will be there, or fail.
                    conflicts += 1
                    if conflicts == _MOST_CONFLICTS:
                        raise TierUnavailable("the log of overrides takes no record") from None
                    await asyncio.sleep(_CONFLICT_SECONDS)
                    continue
                except PreconditionFailed:
                    # Another node was there, or we were, and did not hear of it.
                    there = await read_whole(self._origin, ref)
                    self._take_in(sequence, decode_overrides(there))
                    if there != body:
                        continue
                else:
                    self._take_in(sequence, batch)
                if sequence > pack.highest.overrides_through:
                    return
            # The number is of a record that was folded in and cleaned away: the pack that did it
            # would not look at ours.
            await pack.switched()

    def _take_in(self, sequence: int, batch: OverrideBatch) -> None:
        try:
            self._pack.take(sequence, batch)
        except OverrideError as error:
            raise TierUnavailable(f"the log of {self._pack.prefix!r}: {error}") from error
