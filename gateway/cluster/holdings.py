"""What this node's disk holds, as the others are to know of it: kept in memory, told by the disk.

A bit for each chunk of a large object and for each shard of a pack (a shard is one chunk as large
as its file), and bytes by folder. Small objects that no shard holds are in the bytes alone: what is
worth finding in another rack is worth packing.

No I/O. A folder that is opened is counted from its index piece by piece (`recount.py`) while
changes go on: those of keys that were passed are taken in, those of others wait to be counted.
"""

from collections.abc import Callable, Sequence

import msgspec

from gateway.cluster.chunk_sets import bit_of, stretch_key
from gateway.cluster.datasets import Counter, Folders
from gateway.index.records import Name, Table, decode_chunk, decode_small

# What waits to be told; beyond, the directory is compared with everything that is held instead.
_MOST_UNTOLD = 20_000

_TABLES = (Table.CHUNKS, Table.SMALL)


class Holdings:
    """Bits by stretch and bytes by folder. `on_change` is called when something is new to tell."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self.stretches: dict[bytes, int] = {}
        self.bytes: dict[Counter, int] = {}
        # What to tell of, and whether more has changed than these say.
        self.untold: set[bytes] = set()
        self.uncounted: set[Counter] = set()
        self.overflowed = False
        # Something went of which it could not be read what it was: only counting anew tells.
        self.doubtful = False
        self._folders = Folders()
        self._open = False
        # By table, the key up to which everything is counted; not there once all is.
        self._frontier: dict[Table, bytes] = {}
        self._touched: dict[Table, set[bytes]] = {table: set() for table in _TABLES}

    @property
    def whole(self) -> bool:
        """Whether all that the disk holds is counted."""
        return self._open and not self._frontier

    @property
    def changes(self) -> int:
        """How much there is to tell."""
        return len(self.untold) + len(self.uncounted)

    def begin(self) -> None:
        """A folder was opened, or is to be counted anew: nothing of it is known yet."""
        self.clear()
        self._open = True
        self._frontier = dict.fromkeys(_TABLES, b"")

    def clear(self) -> None:
        """Nothing is held any more."""
        self._open = False
        self.doubtful = False
        self._frontier.clear()
        for touched in self._touched.values():
            touched.clear()
        gone, self.stretches = self.stretches, {}
        for key in gone:
            self._tell(key)
        for counter in self.bytes:
            self._count(counter, 0)
        self.bytes = {}
        self._folders = Folders()

    def changed(self, table: Table, key: bytes, before: bytes | None, now: bytes | None) -> None:
        """Takes in a change of the index."""
        if not self._open:
            return
        passed = self._frontier.get(table)
        if passed is not None and key > passed:
            self._touched[table].add(key)
            return
        if before is not None:
            self._remove(table, key, before)
        elif now is None and table is Table.CHUNKS and self._has(key):
            self.doubtful = True
        if now is not None:
            self._add(table, key, now)

    def count(
        self,
        table: Table,
        entries: Sequence[tuple[bytes, bytes]],
        passed: bytes | None,
        current: Callable[[bytes], bytes | None],
    ) -> None:
        """Takes in the next piece of a table, which ends with the key `passed` (None: its last).
        `current` tells what is held of keys that have changed since it was read."""
        touched = self._touched[table]
        for key, value in entries:
            if key not in touched:
                self._add(table, key, value)
        for key in touched:
            if passed is None or key <= passed:
                value_now = current(key)
                if value_now is not None:
                    self._add(table, key, value_now)
        touched.clear()
        if passed is None:
            del self._frontier[table]
        else:
            self._frontier[table] = passed

    def take(self, limit: int) -> tuple[list[bytes], list[Counter]]:
        """The next stretches and counters to tell of."""
        stretches = [self.untold.pop() for _ in range(min(limit, len(self.untold)))]
        counters = [self.uncounted.pop() for _ in range(min(limit, len(self.uncounted)))]
        return stretches, counters

    def forget_untold(self) -> None:
        """Nobody listens: what was to be told is found by comparing, later."""
        if self.untold or self.uncounted:
            self.untold.clear()
            self.uncounted.clear()
            self.overflowed = True

    def _has(self, key: bytes) -> bool:
        number = int.from_bytes(key[16:], "big")
        return bool(self.stretches.get(stretch_key(key[:16], number), 0) & bit_of(number))

    def _add(self, table: Table, key: bytes, raw: bytes) -> None:
        read = _read(table, raw)
        if read is None:
            return
        if table is Table.CHUNKS:
            number = int.from_bytes(key[16:], "big")
            stretch, bit = stretch_key(key[:16], number), bit_of(number)
            bits = self.stretches.get(stretch, 0)
            if bits & bit:
                return
            self.stretches[stretch] = bits | bit
            self._tell(stretch)
        counter = self._counter_of(read[0])
        self._count(counter, self.bytes.get(counter, 0) + read[1])

    def _remove(self, table: Table, key: bytes, raw: bytes) -> None:
        if table is Table.CHUNKS:
            number = int.from_bytes(key[16:], "big")
            stretch, bit = stretch_key(key[:16], number), bit_of(number)
            bits = self.stretches.get(stretch, 0)
            if not bits & bit:
                return
            if bits == bit:
                del self.stretches[stretch]
            else:
                self.stretches[stretch] = bits ^ bit
            self._tell(stretch)
        read = _read(table, raw)
        if read is None:
            self.doubtful = True
            return
        counter = self._counter_of(read[0])
        self._count(counter, max(0, self.bytes.get(counter, 0) - read[1]))

    def _counter_of(self, name: Name) -> Counter:
        return self._folders.counter(name.origin, name.bucket, name.key)

    def _count(self, counter: Counter, size_bytes: int) -> None:
        self.bytes[counter] = size_bytes
        if len(self.uncounted) < _MOST_UNTOLD:
            self.uncounted.add(counter)
        else:
            self.overflowed = True
        self.on_change()

    def _tell(self, stretch: bytes) -> None:
        if len(self.untold) < _MOST_UNTOLD:
            self.untold.add(stretch)
        else:
            self.overflowed = True
        self.on_change()


def _read(table: Table, raw: bytes) -> tuple[Name, int] | None:
    """The name and size in a record; None where it does not decode, and so does not count."""
    try:
        record = decode_chunk(raw) if table is Table.CHUNKS else decode_small(raw)
    except msgspec.MsgspecError:
        return None
    return record.name, record.size_bytes
