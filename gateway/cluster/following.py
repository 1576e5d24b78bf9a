"""Following the stream of changes: what others begin is not trusted, and they are told so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import structlog
from msgspec.structs import replace

from gateway.cluster.changes import (
    Applied,
    Begun,
    ChangeId,
    Ended,
    Picture,
    Position,
    Run,
    Waits,
    position,
    written,
)
from gateway.cluster.entering import Joined, missed
from gateway.cluster.members import Members
from gateway.cluster.session import Expelled, Hindered, Mark, Memory, Session
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Entry, Link, Word

_PAUSE_SECONDS = 0.2
_READ_SECONDS = 1.0
_ACKS_KEPT = 10_000
_ACKS_SECONDS = 60

log = structlog.get_logger()


class Following:
    """One node's reading of the stream, session after session. `picture` is how things are as of
    the last entry, `mark` how far that is. `patience_seconds`: how long the memory may take to take
    note, while everybody's writes wait for it."""

    def __init__(
        self, link: Link, members: Members, memory: Memory, *, patience_seconds: float
    ) -> None:
        self._patience_seconds = patience_seconds
        # Hears of changes of this node that were begun after all, though it had given them up.
        self.on_stray: Callable[[Session, int], None] = lambda *_: None
        self._link = link
        self._members = members
        self._memory = memory
        self.picture = Picture()
        self.mark: Mark | None = None
        self._waits = Waits()
        self._settled: dict[int, asyncio.Future[None]] = {}
        self._owed: set[Run] = set()
        self._acks_from = "0-0"

    # Writers of this node
    def expect(self, number: int) -> "asyncio.Future[None]":
        """Done once every member has heard of this node's change of that number, which is appended
        from now on; CoordinatorUnavailable once the session ends."""
        future = self._settled[number] = asyncio.get_running_loop().create_future()
        return future

    def give_up(self, number: int) -> None:
        """Nobody waits for that any more."""
        self._settled.pop(number, None)
        self._waits.forget(number)

    def missing(self) -> set[Run]:
        """Members that some write waits for."""
        return self._waits.missing()

    def end(self) -> None:
        """The session is over: what waits for it never settles."""
        self._waits = Waits()
        settled, self._settled = self._settled, {}
        for future in settled.values():
            if not future.done():
                future.set_exception(CoordinatorUnavailable("the membership ended meanwhile"))
                # Its writer may have left.
                future.exception()

    # The stream
    def begin(self, joined: Joined) -> None:
        """Begins with how things were at the session's entry."""
        self.picture.begin_with(joined.members, joined.changing)
        self._owed.clear()
        self._acks_from = "0-0"
        self._members.set(joined.members)
        self.mark = None

    async def catch_up(self, session: Session, joined: Joined, mark: Mark | None) -> None:
        """Drops what was changed while this node was away, and holds what is being changed, or may
        be yet. CoordinatorUnavailable."""
        refs = await missed(self._link, mark, session, joined.place)
        async with self._in_time():
            await self._memory.missed(refs)
            for change, held in joined.changing.items():
                await self._memory.begun(Begun(change, held))
            for run, left in joined.doubted.items():
                change = ChangeId(run, 0)
                await self._memory.begun(Begun(change, left))
                self._memory.ended(Ended(change, abandoned=True))
        self.mark = Mark(session.token, session.process, joined.place)

    async def follow(self, session: Session) -> None:
        """Takes in what comes, until the session ends. Expelled."""
        changes, acks = self._link.key("changes"), self._link.key("acks", *session.run)
        while not session.lost:
            assert self.mark is not None  # noqa: S101 - set by `catch_up`
            try:
                found = await self._link.read(
                    [(changes, written(self.mark.position)), (acks, self._acks_from)],
                    wait_seconds=_READ_SECONDS,
                )
                await self._take(session, found.get(changes.encode(), []))
                self._take_acks(found.get(acks.encode(), []))
                await self._acknowledge(session)
            except (Expelled, Hindered):
                raise
            except CoordinatorUnavailable as error:
                log.info("changes not followed", reason=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _take(self, session: Session, entries: Sequence[Entry]) -> None:
        held: list[Awaitable[None]] = []
        last: Position | None = None
        owed: set[Run] = set()
        unread: ValueError | None = None
        for raw, fields in entries:
            last = position(raw)
            try:
                applied = self.picture.apply(fields)
            except ValueError as error:
                unread = error
                continue
            if applied.begun is not None:
                run = applied.begun.change.run
                if run == session.run:
                    self._own_begun(session, applied.begun, last)
                else:
                    held.append(self._memory.begun(applied.begun))
                    owed.add(run)
            self._take_rest(session, applied)
        if last is None or self.mark is None:
            return
        async with self._in_time():
            await asyncio.gather(*held)
        if unread is not None:
            # Of a later version: to go on would be to say that it is heeded.
            raise Expelled(f"a change that is not understood: {unread}")
        self.mark = replace(self.mark, position=last)
        self._owed |= owed

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._patience_seconds):
                yield
        except TimeoutError as late:
            raise Hindered("the disk does not take note of what is changed") from late

    def _take_rest(self, session: Session, applied: Applied) -> None:
        for ended in applied.ended:
            if ended.change.run != session.run:
                self._memory.ended(ended)
        if applied.gone is not None:
            self._owed.discard(applied.gone)
            self._settle(self._waits.gone(applied.gone))
            if applied.gone == session.run:
                raise Expelled("the others take this node for gone")
        if applied.members:
            self._members.set(self.picture.members.values())

    def _own_begun(self, session: Session, begun: Begun, place: Position) -> None:
        others = self.picture.runs() - {session.run}
        number = begun.change.number
        if number not in self._settled:
            self.on_stray(session, number)
        elif self._waits.begun(number, place, others):
            self._settle([number])

    def _take_acks(self, entries: Sequence[Entry]) -> None:
        for raw, fields in entries:
            self._acks_from = raw.decode()
            run = Run(fields[b"n"].decode(), fields[b"i"].decode())
            self._settle(self._waits.acked(run, position(fields[b"a"])))

    def _settle(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            future = self._settled.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def _acknowledge(self, session: Session) -> None:
        """Tells the writers of what was begun that nothing of it is trusted here any more."""
        assert self.mark is not None  # noqa: S101 - set by `catch_up`
        if not self._owed:
            return
        owed = list(self._owed)
        told = ["n", session.run.id, "i", session.run.incarnation]
        commands: list[list[Word]] = []
        for run in owed:
            acks = self._link.key("acks", *run)
            add: list[Word] = ["XADD", acks, "MAXLEN", "~", _ACKS_KEPT, "*", *told]
            commands.append([*add, "a", written(self.mark.position)])
            # A writer that has left does not take them away.
            commands.append(["EXPIRE", acks, _ACKS_SECONDS])
        await self._link.commands(commands)
        self._owed.difference_update(owed)
