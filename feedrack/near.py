"""The short circuit: objects out of shards that this machine's gateway has handed over.

A read looks at the page of each pack, slices the maps of the shards, and holds each object against
its checksum: no socket, no system call. Whatever is not here, is overridden, or can't be believed
just now is left to the caller, who asks the gateway for it. docs/reader.md says why a read is
never stale.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import xxhash

from feedrack.catalog import Catalog, PackName
from feedrack.client import Client
from feedrack.errors import Unavailable
from feedrack.handed import NotHere, ask_offer, fetch
from feedrack.keys import Keys
from feedrack.offer import Offer, OfferedPack
from feedrack.page import PageLost, ReadPage
from packer.format import Index, IndexDamaged

# How long to wait before asking again: what is good is confirmed, and more shards may be here; what
# could not be believed may be again; what is not on this machine may have moved.
_CONFIRM_SECONDS = 30.0
_AGAIN_SECONDS = 0.5
_TROUBLE_SECONDS = 2.0
_ABSENT_SECONDS = 300.0

_TROUBLE = (OSError, PageLost, IndexDamaged, Unavailable, msgspec.MsgspecError)

_digest = xxhash.xxh3_64_intdigest


Piece = TypeVar("Piece", bytes, memoryview, covariant=True)


class _Memory(Protocol[Piece]):
    """A mapped shard, or a view of one."""

    def __getitem__(self, where: slice, /) -> Piece: ...


class _Pack(NamedTuple):
    """A pack as the state believes it."""

    name: PackName
    through: int
    page_name: str
    page: ReadPage


class _State(NamedTuple):
    """All that a read needs; replaced as a whole, never changed (but for keys that are hidden)."""

    catalog: Catalog
    packs: tuple[_Pack, ...]
    # One for each shard of the catalog, and None at the end: for what is nowhere.
    maps: tuple[mmap.mmap | None, ...]
    # The same, for who wants no copy.
    views: tuple[memoryview | None, ...]


class Near:
    """Reads what is mapped. From any number of threads; a fork shares all of it."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        prefix: str,
        catalog: Catalog | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._client = client
        self._keys = keys
        self._prefix = prefix
        self._now = now
        self._now_ns = now_ns
        self._catalog = catalog
        self._state: _State | None = None
        self._ask_at = self._asked_at = float("-inf")
        self._asking = threading.Lock()
        self._process = os.getpid()
        # Of this process: what was read here, and what was left to the caller.
        self.objects = 0

    @property
    def catalog(self) -> Catalog | None:
        """Where objects lie, as far as it is known: worth carrying to other processes."""
        return self._catalog

    def read(self, positions: Sequence[int | None]) -> list[bytes | None] | None:
        """The objects that are here, None in the place of others; None where nothing is.

        Positions as those of a list; None is nowhere."""
        state = self._believed()
        return None if state is None else self._found(state, state.maps, positions)

    def view(self, positions: Sequence[int | None]) -> list[memoryview | None] | None:
        """As `read`, where they lie: good for as long as somebody holds them."""
        state = self._believed()
        return None if state is None else self._found(state, state.views, positions)

    def _found(
        self,
        state: _State,
        maps: "Sequence[_Memory[Piece] | None]",
        positions: Sequence[int | None],
    ) -> list[Piece | None]:
        catalog = state.catalog
        shard, offset = catalog.shard, catalog.offset
        size, checksum = catalog.size, catalog.checksum
        found: list[Piece | None] = []
        add = found.append
        here = 0
        for position in positions:
            if position is None:
                add(None)
                continue
            memory = maps[shard[position]]
            if memory is not None:
                start = offset[position]
                data = memory[start : start + size[position]]
                if _digest(data) == checksum[position]:
                    add(data)
                    here += 1
                    continue
            add(None)
        self.objects += here
        return found

    def ask(self) -> bool:
        """Asks for what is offered, unless somebody does already; whether any of it is here."""
        if self._process != os.getpid():
            # Whoever held it lives in the parent.
            self._process = os.getpid()
            self._asking = threading.Lock()
        if not self._asking.acquire(blocking=False):
            return False
        try:
            self._asked_at = self._now()
            # For whoever reads meanwhile, and for when it fails.
            self._ask_at = self._asked_at + _AGAIN_SECONDS
            offer = ask_offer(self._client, self._prefix)
            if offer is None:
                self._ask_at = self._now() + _ABSENT_SECONDS
                return False
            self._take(offer)
        except NotHere:
            self._ask_at = self._now() + _ABSENT_SECONDS
        except _TROUBLE:
            # Maybe the gateway is just being restarted.
            self._ask_at = self._now() + _TROUBLE_SECONDS
        else:
            self._ask_at = self._now() + _CONFIRM_SECONDS
            return True
        finally:
            self._asking.release()
        return False

    def _believed(self) -> _State | None:
        """The state, if all of it holds as of now."""
        if self._now() >= self._ask_at:
            if self._asked_at > float("-inf"):
                # Behind the reads: a new pack may take a while to be looked through.
                self._ask_at = self._now() + _AGAIN_SECONDS
                threading.Thread(target=self.ask, name="feedrack-offer", daemon=True).start()
            else:
                self.ask()
        state = self._state
        if state is None:
            return None
        if self._holds(state):
            return state
        # What was overridden since is known after one question, not sooner than a while after the
        # last one.
        self._ask_at = min(self._ask_at, self._asked_at + _AGAIN_SECONDS)
        return None

    def _holds(self, state: _State) -> bool:
        now_ns = self._now_ns()
        return all(
            pack.page.holds(pack.name.generation, pack.through, now_ns) for pack in state.packs
        )

    def _take(self, offer: Offer) -> None:
        """Maps what is offered and makes it the state."""
        packs = sorted(offer.packs, key=lambda pack: len(pack.prefix))
        names = [PackName(pack.prefix, pack.generation) for pack in packs]
        before = self._state
        held: dict[str, mmap.mmap] = {}
        pages: dict[str, ReadPage] = {}
        if before is not None:
            held = {
                sha256: memory
                for sha256, memory in zip(before.catalog.shards, before.maps, strict=False)
                if memory is not None
            }
            pages = {pack.page_name: pack.page for pack in before.packs}
        catalog = self._catalog
        fresh = catalog is None or catalog.packs != names
        wanted = [pack.page for pack in packs if pack.page not in pages]
        wanted += [pack.index.sha256 for pack in packs if fresh]
        wanted += [
            shard.sha256
            for pack in packs
            for shard in pack.shards
            if shard.held and shard.sha256 not in held
        ]
        indexes: dict[str, int] = {}
        try:
            self._receive(offer, wanted, pages, indexes, held)
            if catalog is None or fresh:
                catalog = self._catalog = self._made(packs, names, indexes)
        finally:
            for descriptor in indexes.values():
                os.close(descriptor)
        for pack in packs:
            catalog.hide(self._keys, pack.overridden)
        maps = (*(held.get(sha256) for sha256 in catalog.shards), None)
        self._state = _State(
            catalog,
            tuple(
                _Pack(name, pack.through, pack.page, pages[pack.page])
                for name, pack in zip(names, packs, strict=True)
                if pack.page in pages
            ),
            maps,
            tuple(memoryview(each) if each is not None else None for each in maps),
        )
        if len(self._state.packs) < len(packs):
            self._state = None

    def _receive(
        self,
        offer: Offer,
        wanted: Sequence[str],
        pages: dict[str, ReadPage],
        indexes: dict[str, int],
        held: dict[str, mmap.mmap],
    ) -> None:
        sizes = {
            file.sha256: file.size_bytes
            for pack in offer.packs
            for file in (pack.index, *pack.shards)
        }
        own = {pack.index.sha256 for pack in offer.packs}
        page_names = {pack.page for pack in offer.packs}
        for name, descriptor in fetch(offer, wanted):
            keep = False
            try:
                if name in page_names:
                    pages[name] = ReadPage(descriptor)
                elif os.fstat(descriptor).st_size != sizes.get(name):
                    # Reading beyond a file's end would end this process.
                    continue
                elif name in own:
                    indexes[name] = descriptor
                    keep = True
                else:
                    held[name] = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            finally:
                if not keep:
                    os.close(descriptor)

    def _made(
        self, packs: Sequence[OfferedPack], names: Sequence[PackName], indexes: dict[str, int]
    ) -> Catalog:
        catalog = Catalog(len(self._keys))
        for pack, name in zip(packs, names, strict=True):
            descriptor = indexes.get(pack.index.sha256)
            if descriptor is None:
                raise NotHere("the gateway hands no index over")
            with Index(Path(f"/proc/self/fd/{descriptor}")) as index:
                shards = [(shard.sha256, shard.size_bytes) for shard in index.shards]
                catalog.take(self._keys, name, shards, index)
        return catalog
