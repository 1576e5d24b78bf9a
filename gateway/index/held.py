"""The index of what this node holds: one LMDB file, read on the event loop, written in batches.

Reads see every write at once (what is not yet committed is looked up in memory first) and take
microseconds. Writes are gathered and committed by one thread, synced to disk, so that LMDB's own
structure survives a power cut; the last commits may then be lost, which the caller must expect.
Every value lies under a checksum of itself and its key: what the disk has changed is absent, not
wrong. Nothing else may write the file: the caller holds a lock on its folder. Other processes of
the node read it (`reading.py`).
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import lmdb

from gateway.errors import FeedrackError
from gateway.index.records import Table
from gateway.index.sealing import sealed, unsealed

# How long a write that nobody waits for may stay in memory, so that commits are worth their sync.
_GATHER_SECONDS = 0.25
_STEP_BYTES = 256 * 1024
_SLICE_ENTRIES = 4000
_MAX_BATCH_ENTRIES = 2000
# Beyond these, what could not be committed is not worth the memory: the caller starts over.
_MAX_UNCOMMITTED = 200_000
# How long to wait for other processes' look-ups to end before the file grows for them, and how
# often where it cannot grow.
_WAIT_SECONDS = 0.02
_MAX_WAITS = 100
# Slots for readers: those of this process and of every other one of the node.
_MAX_READERS = 126
# What says that bytes are held.
_WATCHED = (Table.CHUNKS, Table.SMALL)

T = TypeVar("T")
Operation = tuple[tuple[Table, bytes], bytes | None]
Change = Callable[[Table, bytes, bytes | None, bytes | None], None]


class IndexLost(FeedrackError):  # noqa: N818 - named as the other internal errors are
    """The index cannot be used any more; start over with an empty one."""


class HeldIndex:
    """The tables of `records.Table` in one file of at most `max_bytes`.

    `damaged` counts the values found not to match their checksum.

    Built in a thread (that reads the file) and used on one event loop afterwards, once `serve`
    has been called. lmdb.Error where the file is no index.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        # Every entry may rewrite a page, and LMDB uses the old ones again two commits later: what
        # holds something and three batches of pages must fit.
        self._batch_entries = min(_MAX_BATCH_ENTRIES, max(32, max_bytes // 16_384))
        self.limit_bytes = max(max_bytes // 3, max_bytes - 4 * 4096 * self._batch_entries)
        self._grow: Callable[[int], Awaitable[bool]] | None = None
        self._on_error: Callable[[OSError | IndexLost], None] | None = None
        self._on_commit: Callable[[], None] | None = None
        self._on_change: Change | None = None
        self.damaged = 0
        size_bytes = path.stat().st_size if path.exists() else 0
        self.map_bytes = -(-size_bytes // 65_536) * 65_536 + _STEP_BYTES
        self._environment = open_environment(path, self.map_bytes)
        try:
            self._tables = [
                self._environment.open_db(table.name.lower().encode()) for table in Table
            ]
        except lmdb.Error:
            self._environment.close()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index")
        self._turn = asyncio.Lock()
        self._pending: dict[tuple[Table, bytes], bytes | None] = {}
        self._writing: dict[tuple[Table, bytes], bytes | None] = {}
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._waiters: list[asyncio.Future[bool]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def serve(
        self,
        *,
        grow: Callable[[int], Awaitable[bool]],
        on_error: Callable[[OSError | IndexLost], None],
        on_commit: Callable[[], None],
    ) -> None:
        """Allows writes. `grow` is asked for room before the file's map is made larger,
        `on_error` hears of commits that failed (the next `flush` tries again), `on_commit` of
        those that did not."""
        self._grow, self._on_error, self._on_commit = grow, on_error, on_commit

    def observe(self, on_change: Change) -> None:
        """Has `on_change` told of every write of a chunk or small object from now on, in its step:
        table, key, the value before and the value now. It must not raise."""
        self._on_change = on_change

    # Reading
    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value as last written, committed or not."""
        if self._pending or self._writing:
            where = (table, key)
            if where in self._pending:
                return self._pending[where]
            if where in self._writing:
                return self._writing[where]
        return self.committed(table, key)

    def committed(self, table: Table, key: bytes) -> bytes | None:
        """The value in the file. Safe in any thread of one environment."""
        if self._closed:
            return None
        try:
            transaction = self._environment.begin(self._tables[table])
            try:
                raw = transaction.get(key)
            finally:
                transaction.abort()
        except lmdb.Error as error:
            self._unreadable(error)
            return None
        if raw is None:
            return None
        value = unsealed(key, raw)
        if value is None:
            self.damaged += 1
        return value

    def will_hold(self, table: Table, key: bytes) -> bool:
        """Whether the file has an entry of the key, or may have one once the commit that is under
        way is through: what was put or deleted since is not heeded."""
        return self._writing.get((table, key)) is not None or self.committed(table, key) is not None

    def entries(self, table: Table) -> int:
        """How many entries the file's table has."""
        if self._closed:
            return 0
        try:
            with self._environment.begin() as transaction:
                return int(transaction.stat(self._tables[table])["entries"])
        except lmdb.Error as error:
            self._unreadable(error)
            return 0

    def used_bytes(self) -> int:
        """Bytes of the file that hold something. The caller keeps them below `limit_bytes`."""
        pages = 0
        page_bytes = 4096
        try:
            with self._environment.begin() as transaction:
                for table in self._tables:
                    stat = transaction.stat(table)
                    page_bytes = stat["psize"]
                    pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        except lmdb.Error as error:
            self._unreadable(error)
        return int(pages * page_bytes)

    def keys(self, table: Table) -> list[bytes]:
        """All committed keys. Reads the whole table: for recovery, in a thread."""
        with (
            self._environment.begin(self._tables[table]) as transaction,
            transaction.cursor() as cursor,
        ):
            return list(cursor.iternext(keys=True, values=False))

    async def scan(
        self, table: Table, visit: Callable[[bytes, bytes], None], *, limit: int | None = None
    ) -> None:
        """Shows `visit` every committed entry, in a thread, in slices between commits; not all of
        them where the file is damaged (`on_error` knows)."""
        after = b""
        seen = 0
        while limit is None or seen < limit:
            try:
                count, after = await self._run(self._visit, table, after, visit)
            except lmdb.Error as error:
                self._unreadable(error)
                return
            seen += count
            if count < _SLICE_ENTRIES:
                return

    async def walk(
        self, table: Table, after: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Up to `limit` committed entries behind the key `after`, and the key to go on after: None
        at the table's end. IndexLost where the file is damaged, or closed."""
        found: list[tuple[bytes, bytes]] = []

        def visit(key: bytes, value: bytes) -> None:
            found.append((key, value))

        if self._closed:
            raise IndexLost("the index is closed")
        try:
            count, last = await self._run(self._visit, table, after, visit, limit)
        except lmdb.Error as error:
            self._unreadable(error)
            raise IndexLost(str(error)) from error
        return found, last if count == limit else None

    async def clear_dead_readers(self) -> int:
        """Frees the slots of processes that died while they read, and with them the pages they
        kept from being used again; how many there were."""
        if self._closed:
            return 0
        try:
            return await self._run(self._environment.reader_check)
        except lmdb.Error as error:
            self._unreadable(error)
            return 0

    # Writing
    def clear(self, table: Table) -> None:
        """Empties a table at once. Blocking: before the index is served."""
        with self._environment.begin(write=True) as transaction:
            transaction.drop(self._tables[table], delete=False)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Seen by every read from now on; committed a little later."""
        self._write(table, key, value)

    def delete(self, table: Table, key: bytes) -> None:
        """As `put`; a key that is not there is no error."""
        self._write(table, key, None)

    async def flush(self) -> bool:
        """Commits what was written so far; False where that failed (and `on_error` knows)."""
        if self._closed:
            return False
        if not self._pending and not self._writing:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._urgent.set()
        self._start()
        return await waiter

    def abandon(self) -> None:
        """Closes without a commit. Blocking: before the index is served."""
        self._closed = True
        self._thread.shutdown()
        self._environment.close()

    async def close(self) -> bool:
        """Commits and closes; whether everything is in the file."""
        whole = await self.flush()
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(False)
        async with self._turn:
            self._thread.shutdown(wait=True)
            self._environment.close()
        return whole

    def _write(self, table: Table, key: bytes, value: bytes | None) -> None:
        if self._closed:
            return
        told = self._on_change if table in _WATCHED else None
        before = self.get(table, key) if told is not None else None
        self._pending[table, key] = value
        self._start()
        if told is not None:
            told(table, key, before, value)

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._commits())

    async def _commits(self) -> None:
        while True:
            await self._wake.wait()
            if not self._waiters:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), _GATHER_SECONDS)
            self._wake.clear()
            self._urgent.clear()
            waiters, self._waiters = self._waiters, []
            whole = await self._commit()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(whole)

    async def _commit(self) -> bool:
        self._writing, self._pending = self._pending, {}
        if not self._writing:
            return True
        try:
            operations = list(self._writing.items())
            for start in range(0, len(operations), self._batch_entries):
                await self._store(operations[start : start + self._batch_entries])
                if self._on_commit is not None:
                    self._on_commit()
        except (OSError, IndexLost) as error:
            # Newer writes win over those that did not get through.
            self._pending = self._writing | self._pending
            self._writing = {}
            too_much = len(self._pending) > _MAX_UNCOMMITTED
            if self._on_error is not None:
                self._on_error(IndexLost("too much could not be committed") if too_much else error)
            return False
        self._writing = {}
        return True

    async def _store(self, batch: list[Operation]) -> None:
        waits = 0
        while True:
            try:
                await self._run(self._transact, batch)
            except lmdb.MapFullError as error:
                step = min(max(_STEP_BYTES, self.map_bytes // 4), self._max_bytes - self.map_bytes)
                step -= step % 4096
                if waits < (1 if step > 0 else _MAX_WAITS) and await self._is_read_elsewhere():
                    # A page let go of is used again once nobody reads what was committed before.
                    # A look-up takes microseconds, but its process may be held up in the midst.
                    waits += 1
                    await asyncio.sleep(_WAIT_SECONDS)
                    continue
                await self._enlarge(step, error)
                waits = 0
            except lmdb.Error as error:
                raise translated(error, self._path) from error
            else:
                return

    async def _is_read_elsewhere(self) -> bool:
        """Whether another process has the index open, or had it until it died."""
        if await self.clear_dead_readers():
            return True
        rows = self._environment.readers().splitlines()[1:]
        return any(int(row.split()[0]) != os.getpid() for row in rows)

    async def _enlarge(self, step: int, error: lmdb.MapFullError) -> None:
        if step <= 0 or self._grow is None:
            if self.used_bytes() <= self.limit_bytes and await self._is_read_elsewhere():
                # There is space, but it is held: no reason to lose what is in the index.
                raise OSError(errno.EBUSY, "the index is read and cannot be written") from error
            raise IndexLost("the index is full") from error
        if not await self._grow(step):
            raise OSError(errno.ENOSPC, "no room for the index", str(self._path)) from error
        # The map may move only while no transaction is open: none is on this thread, and the
        # turn keeps the other one idle.
        async with self._turn:
            try:
                self._environment.set_mapsize(self.map_bytes + step)
            except lmdb.Error as failure:
                raise translated(failure, self._path) from failure
            self.map_bytes += step

    def _transact(self, batch: list[Operation]) -> None:
        with self._environment.begin(write=True) as transaction:
            for (table, key), value in batch:
                if value is None:
                    transaction.delete(key, db=self._tables[table])
                else:
                    transaction.put(key, sealed(key, value), db=self._tables[table])

    def _visit(
        self,
        table: Table,
        after: bytes,
        visit: Callable[[bytes, bytes], None],
        limit: int = _SLICE_ENTRIES,
    ) -> tuple[int, bytes]:
        count = 0
        for key, raw in self._entries_after(table, after, limit):
            value = unsealed(key, raw)
            if value is None:
                self.damaged += 1
            else:
                visit(key, value)
            count += 1
            after = key
        return count, after

    def _entries_after(
        self, table: Table, after: bytes, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        with (
            self._environment.begin(self._tables[table]) as transaction,
            transaction.cursor() as cursor,
        ):
            there = cursor.set_range(after) if after else cursor.first()
            if there and after and cursor.key() == after:
                there = cursor.next()
            for _ in range(limit):
                if not there:
                    return
                yield cursor.item()
                there = cursor.next()

    def _unreadable(self, error: lmdb.Error) -> None:
        # A page of the file is not what it was: nothing in it can be relied on any more.
        if self._on_error is None:
            raise error
        self._on_error(translated(error, self._path))

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        async with self._turn:
            future = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                # The turn ends only when the thread is idle again.
                await asyncio.wait([future])
                raise


def open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    """The index file as LMDB opens it. lmdb.Error where it cannot be.

    Without metasync a power cut may undo the last commits but never breaks the file.
    """
    return lmdb.open(
        str(path),
        subdir=False,
        map_size=map_bytes,
        metasync=False,
        max_dbs=len(Table),
        max_readers=_MAX_READERS,
        max_spare_txns=2,
        readahead=False,
    )


def translated(error: lmdb.Error, path: Path) -> OSError | IndexLost:
    """LMDB's error as what it means: the disk's error, or a file that is no good any more."""
    code = error.code
    if code <= 0 or code == errno.EINVAL:
        return IndexLost(str(error))
    if code == errno.EACCES:
        code = errno.EROFS
    return OSError(code, error.reason, str(path))
