"""Whatever is written through two nodes, deleted, packed, repacked, dropped, crashed and restarted,
in whatever interleaving: every GET and every LIST through either finds what a plain bucket would
hold.

Real nodes but for their HTTP, the real packer, a real directory. `SEEDS=n` tries more of them.
"""

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway import config as configuration
from gateway.app import Parts
from gateway.errors import NoSuchKey
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL, WriteConditions
from gateway.tiers.packed import known
from packer.catalog import load_current
from packer.drop import WouldLose, drop
from packer.format import SETTLE_SECONDS, Place
from packer.lock import LEASE_SECONDS
from packer.originals import delete_originals
from packer.pack import Options, PackRefused, pack
from packer.progress import Silent
from packer.stores.choice import Dataset
from packer.targets import BucketTarget
from packer.unpack import unpack
from tests.packer.memory import Crashed, Disturbed
from tests.packs.origin_store import OriginStore

SEEDS = int(os.environ.get("SEEDS", "12"))
PLACE = Place("p/")
KEYS = [*(f"p/{number}" for number in range(5)), "p/a/1", "p/a/2", "p/b/1", "o", "p0", "a/x"]
# Few values: the same bytes are written again, now and then.
VALUES = [b"", b"a", b"bb", bytes(90), bytes(101), b"c" * 70_000]
ANYHOW = WriteConditions()

Listing = tuple[list[str], list[str]]


class World:
    """A bucket, two nodes and a packer, driven by chance; `truth` is what a plain bucket holds."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.truth: dict[str, tuple[bytes, str]] = {}
        self.rate = 0.0
        self.guard = asyncio.Lock()
        (folder / "data" / "bucket").mkdir(parents=True)
        (folder / "secret").write_text("secret")
        self.starts = 0
        self.nodes: list[Parts] = []

    async def start(self) -> None:
        self.nodes = [await self._node(), await self._node()]
        self.beside = await self._node()
        origin = self.beside.origins["main"]._origin
        self.store = OriginStore(origin, "bucket", asyncio.get_running_loop())

    async def stop(self) -> None:
        for node in (*self.nodes, self.beside):
            await node.stop()

    async def _node(self) -> Parts:
        self.starts += 1
        secret = str(self.folder / "secret")
        raw = {
            "node": {"id": f"n{self.starts}"},
            "cache": {
                "path": str(self.folder / f"cache{self.starts}"),
                "capacity": "32MiB",
                "chunk_size": "64KiB",
                "small_object_limit": "64KiB",
            },
            "default_origin": "main",
            "origins": {"main": {"type": "directory", "path": str(self.folder / "data")}},
            "buckets": {"bucket": {"freshness_seconds": 0}},
            "tenants": [{"name": "t", "access_key": "k", "secret_key_file": secret}],
        }
        node = Parts(configuration.parse(raw))
        await node.start()
        return node

    # What happens
    async def write(self) -> None:
        async with self.guard:
            node = self.chance.choice(self.nodes)
            key = self.chance.choice(KEYS)
            if self.chance.random() < 0.3:
                await node.service.delete("bucket", key)
                self.truth.pop(key, None)
                return
            data, kind = self.chance.choice(VALUES), self.chance.choice(["x/a", "x/b"])
            body, headers = BytesBody(data), {"content-type": kind}
            if self.chance.random() < 0.2 and self.truth:
                source = self.chance.choice(sorted(self.truth))
                if source != key:
                    await node.service.copy(
                        "bucket", source, None, "bucket", key, headers=None, tagging=None,
                        source_conditions=UNCONDITIONAL, conditions=ANYHOW,
                        checksum_algorithm=None,
                    )  # fmt: skip
                    self.truth[key] = self.truth[source]
                return
            await node.service.put("bucket", key, body, headers, ANYHOW)
            self.truth[key] = data, kind

    async def restart(self) -> None:
        at = self.chance.randrange(2)
        await self.nodes[at].stop()
        self.nodes[at] = await self._node()

    async def step(self) -> None:
        # What was left out of a lock goes by its lease.
        self.store.ahead_seconds += LEASE_SECONDS + 1
        self.rate = self.chance.choice([0.0, 0.0, 0.05, 0.3])
        doing = self.chance.choice(
            [self.write, self.write, self.write, self.restart,
             self.pack, self.pack, self.pack, self.delete, self.restore, self.drop]
        )  # fmt: skip
        if doing in (self.write, self.restart):
            await doing()
            return
        crash_at = self.chance.randrange(60) if self.chance.random() < 0.4 else 10**9
        self.disturbed = Disturbed(self.store, self._disturb, crash_at)
        packer: Callable[[], object] = doing
        with suppress(Crashed, WouldLose, PackRefused):
            await asyncio.to_thread(packer)

    def _disturb(self) -> None:
        if self.chance.random() < self.rate:
            loop = self.store._loop
            asyncio.run_coroutine_threadsafe(self.write(), loop).result()

    def pack(self) -> None:
        options = Options(
            dataset=Dataset("bucket", "p/"),
            folder=self.folder / "spool",
            order=self.chance.choice(["lexical", "shuffled:1"]),
            shard_bytes=self.chance.choice([100, 250]),
            largest_bytes=100,
            jobs=1,
            resume=False,
            settle_seconds=0.0,
            # Folded records stay for a day; that nobody writes meanwhile is as good.
            keep_seconds=self.chance.choice([0.0, 1e9]) if not self.rate else 1e9,
        )
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

    # What must hold
    async def check(self) -> None:
        for node in self.nodes:
            assert await self._objects(node) == self.truth
            prefix = self.chance.choice(["", "p/", "p", "p/a/", "p/2", "x", "a"])
            delimiter = self.chance.choice(["", "/", "a"])
            listed = await self._listed(node, prefix, delimiter)
            assert listed == _expected(sorted(self.truth), prefix, delimiter)

    async def _objects(self, node: Parts) -> dict[str, tuple[bytes, str]]:
        found = {}
        for key in KEYS:
            with suppress(NoSuchKey):
                answer = await node.service.get("bucket", key)
                data = b"".join([bytes(block) async for block in answer.blocks()])
                await answer.close()
                found[key] = data, answer.info.headers["content-type"]
        return found

    async def _listed(self, node: Parts, prefix: str, delimiter: str) -> Listing:
        keys: list[str] = []
        prefixes: list[str] = []
        after: str | None = ""
        limit = self.chance.choice([1, 2, 3, 1000])
        while after is not None:
            page = await node.service.list_objects(
                "bucket", prefix=prefix, delimiter=delimiter, after=after, limit=limit
            )
            assert len(page.objects) + len(page.common_prefixes) <= limit
            for entry in page.objects:
                keys.append(entry.key)
                assert entry.size_bytes == len(self.truth[entry.key][0])
                info = await node.service.head("bucket", entry.key)
                assert (entry.etag, entry.last_modified_ms) == (
                    info.info.etag,
                    info.info.last_modified_ms,
                )
            prefixes += page.common_prefixes
            after = page.next_after
        return keys, prefixes


def _expected(keys: list[str], prefix: str, delimiter: str) -> Listing:
    listed: list[str] = []
    prefixes: list[str] = []
    for key in keys:
        if not key.startswith(prefix):
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        if at < 0:
            listed.append(key)
        elif key[: at + 1] not in prefixes:
            prefixes.append(key[: at + 1])
    return listed, prefixes


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, where a machine has such a place: every write here is synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_node_answers_as_a_plain_bucket(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither packer nor nodes wait for the other to notice; so nodes look at every write.
    monkeypatch.setattr(known, "_SETTLED_SECONDS", 0.0)
    sys.stdout.write(f"seed {seed}\n")
    world = World(seed, folder)
    await world.start()
    for _ in range(25):
        await world.step()
        await world.check()
    await world.stop()


def test_nodes_look_more_often_than_packers_wait() -> None:
    assert known._SETTLED_SECONDS < SETTLE_SECONDS
