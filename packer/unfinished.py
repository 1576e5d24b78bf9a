"""What an interrupted pack has done: sealed shards and runs, in the bucket and on this disk."""

import hashlib
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from packer.building import Sealed
from packer.catalog import PackDamaged
from packer.format import Place
from packer.runs import RunDamaged, read_head, read_run
from packer.stores.protocol import Deletion, ObjectMissing, Store


class Start(Struct, frozen=True):
    """How the unfinished pack was begun: it can only go on in the same way."""

    pack_id: str
    after_generation: int
    order: str
    shard_bytes: int
    largest_bytes: int
    source: str | None


class Unfinished:
    """The pack under way: which shards are done, in the order of their numbers."""

    def __init__(self, store: Store, place: Place, folder: Path, start: Start) -> None:
        self._store = store
        self._place = place
        self.start = start
        self.folder = folder / start.pack_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prefix = f"{place.building}{start.pack_id}/"
        self.runs: dict[int, Path] = {}

    @property
    def next_number(self) -> int:
        """The number of the next shard."""
        return max(self.runs, default=0) + 1

    def begin(self) -> None:
        """Says in the bucket that this pack is under way."""
        self._store.put(f"{self._place.building}start", msgspec.json.encode(self.start))

    def resume(self, sent: Callable[[int], None]) -> None:
        """Takes up what is done: runs in the bucket, and sealed shards that only this disk has."""
        for item in self._store.listing(self._prefix):
            if item.key.endswith(".run"):
                path = self.folder / item.key.removeprefix(self._prefix)
                path.write_bytes(self._store.get(item.key).data)
                self._take(path)
        for path in sorted(self.folder.glob("*.run")):
            shard = path.with_suffix(".lmdb")
            try:
                head = read_head(path)
                whole = sum(1 for _ in read_run(path)) == head.entries and shard.exists()
            except RunDamaged:
                continue
            if head.number not in self.runs and whole and _sha256(shard) == head.shard.sha256:
                self.upload(Sealed(shard, path, head), sent)

    def upload(self, sealed: Sealed, sent: Callable[[int], None]) -> None:
        """Uploads a sealed shard, then its run; from then on it is done for good."""
        shard = sealed.head.shard
        key = self._place.shard(shard.sha256)
        try:
            there = self._store.head(key).size_bytes == shard.size_bytes
        except ObjectMissing:
            there = False
        if not there:
            self._store.put_file(key, sealed.shard, sent)
        self._store.put_file(f"{self._prefix}{sealed.run.name}", sealed.run, lambda _: None)
        sealed.shard.unlink()
        self.runs[sealed.head.number] = sealed.run

    def forget(self) -> None:
        """Removes all traces of what is under way, here and in the bucket."""
        keys = [item.key for item in self._store.listing(self._place.building)]
        for first in range(0, len(keys), 1000):
            failed = self._store.delete([Deletion(key) for key in keys[first : first + 1000]])
            if failed:
                raise failed[0][1]
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, path: Path) -> None:
        try:
            head = read_head(path)
            # To its end: it must be whole.
            for _ in read_run(path):
                pass
        except RunDamaged as error:
            raise PackDamaged(f"{self._prefix}{path.name}: {error}") from error
        self.runs[head.number] = path


def find_start(store: Store, place: Place) -> Start | None:
    """How the unfinished pack of a place was begun; None where there is none."""
    try:
        return msgspec.json.decode(store.get(f"{place.building}start").data, type=Start)
    except (ObjectMissing, msgspec.MsgspecError):
        return None


def new_id() -> str:
    """The id of a pack."""
    return secrets.token_hex(8)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
