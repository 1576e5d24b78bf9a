"""Whatever is written, packed, repacked, deleted, dropped, crashed, in whatever interleaving: who
reads as docs/pack-format.md says a gateway reads finds what a plain bucket would hold."""

import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from packer.catalog import fetch_index, load_current, read_overrides
from packer.drop import WouldLose, drop
from packer.format import Override, OverrideBatch, Place, encode_overrides, etag_text
from packer.lock import LEASE_SECONDS
from packer.originals import delete_originals
from packer.pack import Options, PackRefused, pack
from packer.progress import Silent
from packer.stores.choice import Dataset
from packer.stores.protocol import Deletion, ObjectMissing
from packer.targets import BucketTarget
from packer.unpack import unpack
from packer.verify import verify_pack
from tests.packer.memory import Crashed, Disturbed, MemoryStore

PLACE = Place("p/")
KEYS = [f"p/{number}" for number in range(8)]
# Few values: the same bytes are written again, now and then.
VALUES = [b"", b"a", b"bb", bytes(90), bytes(101)]


class Node:
    """What a gateway does and answers, by the format's rules; `truth` is what it should."""

    def __init__(self, store: MemoryStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.truth: dict[str, tuple[bytes, str]] = {}

    def put(self, key: str, data: bytes, kind: str) -> None:
        headers = {"content-type": kind}
        etag = self.store.put(key, data, headers=headers)
        self.truth[key] = (data, kind)
        known = self.store.head(key)
        self._log(
            Override(
                op="put",
                key=key,
                etag=etag,
                size_bytes=len(data),
                modified_ms=known.modified_ms,
                headers=headers,
            )
        )

    def delete(self, key: str) -> None:
        self.store.delete([Deletion(key)])
        self.truth.pop(key, None)
        self._log(Override(op="delete", key=key))

    def _log(self, override: Override) -> None:
        manifest = load_current(self.store, PLACE)
        if manifest is None or manifest.state == "dropped":
            return
        overrides = read_overrides(self.store, PLACE, manifest.overrides_through)
        body = encode_overrides(OverrideBatch(node="n1", records=(override,)))
        self.store.put(PLACE.override(overrides.through + 1), body, if_absent=True)

    def answers(self) -> dict[str, tuple[bytes, str]]:
        """GetObject of every key."""
        manifest = load_current(self.store, PLACE)
        if manifest is None or manifest.state != "whole":
            return {key: found for key in KEYS if (found := self._origin(key)) is not None}
        overrides = read_overrides(self.store, PLACE, manifest.overrides_through)
        answers = {}
        listed = set()
        with fetch_index(self.store, PLACE, manifest, self.folder) as index:
            for key in KEYS:
                record, stand = index.get(key.encode()), overrides.get(key)
                override = stand.override if stand is not None else None
                if override is not None:
                    if override.op == "put":
                        listed.add(key)
                elif record is not None:
                    listed.add(key)
                found = None
                if record is not None and record.shard is not None:
                    same = override is not None and override.etag == etag_text(record.etag)
                    if override is None or (override.op == "put" and same):
                        shard = index.shards[record.shard].sha256
                        data = self.store.read(PLACE.shard(shard), record.offset, record.size_bytes)
                        headers = override.headers if override is not None else record.headers
                        assert isinstance(headers, dict)
                        found = (data, headers["content-type"])
                if found is None:
                    found = self._origin(key)
                if found is not None:
                    answers[key] = found
        assert listed == set(answers), "the listing says something else than GetObject"
        return answers

    def _origin(self, key: str) -> tuple[bytes, str] | None:
        try:
            got = self.store.get(key)
        except ObjectMissing:
            return None
        return got.data, got.headers["content-type"]


class World:
    """A bucket, a gateway and a packer, driven by chance."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.store = MemoryStore(conditional=self.chance.random() < 0.7)
        self.folder = folder
        self.guard = threading.Lock()
        self.rate = 0.0
        reading = folder / "reading"
        reading.mkdir()
        self.node = Node(self.store, reading)

    def write(self) -> None:
        key = self.chance.choice(KEYS)
        if self.chance.random() < 0.3:
            self.node.delete(key)
        else:
            self.node.put(key, self.chance.choice(VALUES), self.chance.choice(["x/a", "x/b"]))

    def disturb(self) -> None:
        # Packers read in threads; a write and its record are one step to a gateway's client.
        with self.guard:
            if self.chance.random() < self.rate:
                self.write()

    def step(self) -> None:
        chance = self.chance
        # What was left out of a lock goes by its lease.
        self.store.clock_ms += int((LEASE_SECONDS + 1) * 1000)
        self.rate = chance.choice([0.0, 0.0, 0.05, 0.3])
        doing: Callable[[], object] = chance.choice(
            [self.write, self.write, self.write, self.pack, self.pack, self.pack, self.delete,
             self.restore, self.drop]
        )  # fmt: skip
        crash_at = chance.randrange(60) if chance.random() < 0.4 else 10**9
        self.disturbed = Disturbed(self.store, self.disturb, crash_at)
        with suppress(Crashed, WouldLose, PackRefused):
            doing()

    def pack(self) -> None:
        options = Options(
            dataset=Dataset("memory", "p/"),
            folder=self.folder / "spool",
            order=self.chance.choice(["lexical", "shuffled:1"]),
            shard_bytes=self.chance.choice([100, 250]),
            largest_bytes=100,
            jobs=1,
            resume=False,
            settle_seconds=0.0,
            keep_seconds=self.chance.choice([0.0, 1e9]),
        )
        if self.chance.random() < 0.5:
            # As it may have been begun.
            options = Options(
                dataset=options.dataset, folder=options.folder, shard_bytes=100,
                largest_bytes=100, jobs=1, settle_seconds=0.0, resume=self.chance.random() < 0.5,
            )  # fmt: skip
        pack(self.disturbed, options, Silent())  # type: ignore[arg-type]

    def delete(self) -> None:
        if self._is_whole():
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            delete_originals(self.disturbed, PLACE, folder, Silent())  # type: ignore[arg-type]

    def restore(self) -> None:
        # Restoring beside a write of the same bytes is not told apart from it: nobody writes.
        self.rate = 0.0
        if self._is_whole():
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            target = BucketTarget(self.store, "p/", "p/", replace=False, keep_times=False)
            unpack(self.disturbed, PLACE, folder, target, Silent(), jobs=1, in_place=True)  # type: ignore[arg-type]

    def drop(self) -> None:
        if load_current(self.store, PLACE) is not None:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            drop(self.disturbed, PLACE, folder, force=False)  # type: ignore[arg-type]

    def _is_whole(self) -> bool:
        manifest = load_current(self.store, PLACE)
        return manifest is not None and manifest.state == "whole"

    def check(self) -> None:
        assert self.node.answers() == self.node.truth
        if self._is_whole():
            folder = self.folder / "reading"
            assert not verify_pack(self.store, PLACE, folder, Silent()).damaged_count


@pytest.mark.parametrize("seed", range(40))
def test_readers_find_what_was_written_last(seed: int, tmp_path: Path) -> None:
    for round_ in range(3):
        folder = tmp_path / str(round_)
        folder.mkdir()
        world = World(seed * 1000 + round_, folder)
        for _ in range(25):
            world.step()
            world.check()
        shutil.rmtree(folder)
