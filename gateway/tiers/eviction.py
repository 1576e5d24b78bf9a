"""What the disk cache lets go of when it needs room. Pure: facts in, decisions out.

The policy is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023):
what is new goes through a small queue, so that a scan passes without touching what is in use;
what was read there again, or comes back soon after it was evicted (a ghost), belongs to the main
queue, which gives everything that was read a further round. Two changes make it fit training,
where every epoch reads everything once, in another order, and the best that can be done is to
keep what one has:

- the main queue is first filled with whatever comes, instead of only with what comes twice;
- a ghost must win its place: each one costs the oldest item of the main queue one of its reads,
  and only an item without any gives way. Whether such swaps pay is watched: of the ghost that won
  and the item that gave way, which is asked for first? In shuffled epochs it nearly always is the
  item that gave way, and then ghosts must come in ever greater numbers for one to win.

Items have sizes and may be worth only a part of a read (a shard of which some objects were read).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

SMALL_SHARE = 0.05
# An item's reads count up to this, so that yesterday's favourite does go in the end.
MAX_READS = 3.0
# From half its size read again, an item counts as read.
_READ = 0.5
_MAX_GHOSTS = 1 << 18
# How many ghosts it takes at most for one to win, and how fast that many are asked for.
_MAX_PRICE = 32.0
_PRICE_STEP = 1.1
_MAX_DUELS = 1 << 16

I = TypeVar("I", bound=Hashable)  # noqa: E741 - an item


class Ghosts:
    """The names of what was lately evicted, up to as many bytes as the main queue holds."""

    def __init__(self, limit_bytes: int, limit_entries: int = _MAX_GHOSTS) -> None:
        self.limit_bytes = limit_bytes
        self._limit_entries = limit_entries
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: Hashable, size_bytes: int) -> None:
        """Remembers an eviction, and forgets the oldest beyond the limits."""
        self.take(name)
        self._sizes[name] = size_bytes
        self._bytes += size_bytes
        while self._bytes > self.limit_bytes or len(self._sizes) > self._limit_entries:
            _, oldest_bytes = self._sizes.popitem(last=False)
            self._bytes -= oldest_bytes

    def take(self, name: Hashable) -> bool:
        """Whether the name was there; it no longer is."""
        size_bytes = self._sizes.pop(name, None)
        if size_bytes is None:
            return False
        self._bytes -= size_bytes
        return True


class Duels:
    """Pairs of a name that won a place and one that lost it, until either is asked for again.

    `price` is how many ghosts should come for one to win a place: 1 while winners are asked for
    first, more while losers are."""

    def __init__(self, limit_entries: int = _MAX_DUELS) -> None:
        self._limit_entries = limit_entries
        self._waiting: OrderedDict[Hashable, None] = OrderedDict()
        self._losers: OrderedDict[Hashable, Hashable] = OrderedDict()
        self._winners: dict[Hashable, Hashable] = {}
        self.price = 1.0

    def __len__(self) -> int:
        return len(self._losers)

    def won(self, name: Hashable) -> None:
        """A name took a place; whose, is not known yet."""
        self._forget(name)
        self._waiting[name] = None
        if len(self._waiting) > self._limit_entries:
            self._waiting.popitem(last=False)

    def lost(self, name: Hashable) -> None:
        """A name had to go: to the winner that has waited longest, if any has."""
        self._forget(name)
        if not self._waiting:
            return
        winner, _ = self._waiting.popitem(last=False)
        self._losers[name] = winner
        self._winners[winner] = name
        if len(self._losers) > self._limit_entries:
            self._forget(next(iter(self._losers)))

    def asked(self, name: Hashable) -> None:
        """A name is asked for: if it is of a pair, this decides."""
        if name in self._losers:
            self.price = min(_MAX_PRICE, self.price * _PRICE_STEP)
        elif name in self._waiting or name in self._winners:
            self.price = max(1.0, self.price / _PRICE_STEP)
        else:
            return
        self._forget(name)

    def _forget(self, name: Hashable) -> None:
        # A name is in one place at most: waiting, or winner or loser of one pair.
        self._waiting.pop(name, None)
        if name in self._winners:
            del self._losers[self._winners.pop(name)]
        elif name in self._losers:
            del self._winners[self._losers.pop(name)]


class Victim(NamedTuple, Generic[I]):
    """An item that has to go, what that frees, and whether it was in the main queue."""

    item: I
    size_bytes: int
    main: bool


class _Entry:
    __slots__ = ("main", "reads", "size_bytes")

    def __init__(self, size_bytes: int, main: bool, reads: float) -> None:
        self.size_bytes = size_bytes
        self.main = main
        self.reads = reads


class Policy(Generic[I]):
    """Which of the items in the cache goes next.

    `limit_bytes` is what all items may take together; the caller asks for `victim`s until what it
    wants to add fits. `on_spent` hears of items that paid with a read for staying. An item that
    `is_bundle` comes and goes under the names of what is in it: the caller asks `wins` for each
    on its way in, tells `read` of each, and `evicted` of each that went with its bundle.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        on_spent: Callable[[I], None] | None = None,
        is_bundle: Callable[[I], bool] = lambda _: False,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.small_bytes = 0
        self.main_bytes = 0
        self.ghosts = Ghosts(self._main_limit_bytes)
        self.duels = Duels()
        self._on_spent = on_spent
        self._is_bundle = is_bundle
        self._entries: dict[I, _Entry] = {}
        self._small: OrderedDict[I, None] = OrderedDict()
        self._main: OrderedDict[I, None] = OrderedDict()
        self._challenge_bytes = 0
        self._credit_bytes = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    @property
    def resident_bytes(self) -> int:
        """What all items take together."""
        return self.small_bytes + self.main_bytes

    def size_bytes(self, item: I) -> int:
        """What an item takes. KeyError where it is not in the cache."""
        return self._entries[item].size_bytes

    def resize(self, limit_bytes: int) -> None:
        """Changes the limit; the caller evicts if need be."""
        self.limit_bytes = limit_bytes
        self.ghosts.limit_bytes = self._main_limit_bytes

    def add(self, item: I, size_bytes: int, *, main: bool = False) -> None:
        """Takes an item in that is now in the cache; `main` where its worth is known already."""
        self.remove(item)
        if not main:
            main = self.wins(item, size_bytes)
        # A ghost that won its place has been read twice by now.
        self._entries[item] = _Entry(size_bytes, main, 1.0 if main else 0.0)
        if main:
            self._main[item] = None
            self.main_bytes += size_bytes
        else:
            self._small[item] = None
            self.small_bytes += size_bytes

    def wins(self, name: Hashable, size_bytes: int) -> bool:
        """Whether what comes in under this name belongs to the main queue at once.

        So it does if it was evicted lately and either the main queue has room, or swaps pay and
        its oldest item was not read since it was last asked to give way."""
        self.duels.asked(name)
        if not self.ghosts.take(name):
            return False
        if self.main_bytes + size_bytes <= self._main_limit_bytes:
            return True
        oldest = next(iter(self._main), None)
        if oldest is None:
            return False
        entry = self._entries[oldest]
        if entry.reads < _READ:
            self._credit_bytes += size_bytes / self.duels.price
            if self._credit_bytes < size_bytes:
                return False
            self._credit_bytes -= size_bytes
            self.duels.won(name)
            return True
        self._challenge_bytes += size_bytes
        if self._challenge_bytes >= entry.size_bytes:
            self._challenge_bytes -= entry.size_bytes
            self._spend(oldest, entry)
        return False

    def read(self, item: I, worth: float = 1.0) -> None:
        """Tells that an item, or this part of it, was read. Unknown items are ignored."""
        self.duels.asked(item)
        entry = self._entries.get(item)
        if entry is not None:
            entry.reads = min(MAX_READS, entry.reads + worth)

    def remove(self, item: I) -> int:
        """Forgets an item that leaves the cache for another reason; its size, 0 if unknown."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return 0
        if entry.main:
            del self._main[item]
            self.main_bytes -= entry.size_bytes
        else:
            del self._small[item]
            self.small_bytes -= entry.size_bytes
        return entry.size_bytes

    def victim(self, pinned: Callable[[I], bool] = lambda _: False) -> Victim[I] | None:
        """The item to evict now, no longer counted; None where every item is pinned."""
        found = None
        if self.small_bytes < self._small_limit_bytes:
            found = self._from_main(pinned)
        # What the small queue hands on to the main queue may be all there is.
        return found or self._from_small(pinned) or self._from_main(pinned)

    def evicted(self, name: Hashable, size_bytes: int, *, main: bool) -> None:
        """Tells of a name that went with a bundle; of other items `victim` knows itself."""
        if main:
            self.duels.lost(name)
        else:
            self.ghosts.add(name, size_bytes)

    @property
    def _small_limit_bytes(self) -> int:
        return int(self.limit_bytes * SMALL_SHARE)

    @property
    def _main_limit_bytes(self) -> int:
        return self.limit_bytes - self._small_limit_bytes

    def _from_small(self, pinned: Callable[[I], bool]) -> Victim[I] | None:
        for _ in range(len(self._small)):
            item = next(iter(self._small))
            entry = self._entries[item]
            fits = self.main_bytes + entry.size_bytes <= self._main_limit_bytes
            if entry.reads >= _READ or fits:
                self.remove(item)
                self._entries[item] = entry
                entry.main, entry.reads = True, 0.0
                self._main[item] = None
                self.main_bytes += entry.size_bytes
                if self.main_bytes > self._main_limit_bytes:
                    found = self._from_main(pinned)
                    if found is not None:
                        return found
            elif pinned(item):
                self._small.move_to_end(item)
            else:
                return self._take_out(item, entry)
        return None

    def _from_main(self, pinned: Callable[[I], bool]) -> Victim[I] | None:
        # Every item may have to spend all its reads before one gives way.
        for _ in range(int(MAX_READS + 1) * len(self._main)):
            item = next(iter(self._main))
            entry = self._entries[item]
            if entry.reads >= _READ:
                self._spend(item, entry)
            elif pinned(item):
                self._main.move_to_end(item)
            else:
                return self._take_out(item, entry)
        return None

    def _take_out(self, item: I, entry: _Entry) -> Victim[I]:
        self.remove(item)
        if not self._is_bundle(item):
            self.evicted(item, entry.size_bytes, main=entry.main)
        return Victim(item, entry.size_bytes, entry.main)

    def _spend(self, item: I, entry: _Entry) -> None:
        self._main.move_to_end(item)
        entry.reads = max(0.0, entry.reads - 1.0)
        if self._on_spent is not None:
            self._on_spent(item)
