"""Nodes without their HTTP over one packed directory, whose requests to the origin can be watched,
held up and made to fail."""

import asyncio
import inspect
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway import config as configuration
from gateway.app import Parts
from gateway.errors import NoSuchKey
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL, WriteConditions
from gateway.model.objects import ObjectRef
from gateway.model.ranges import RangeSpec
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.packed.known import Pack
from packer.format import Place
from packer.originals import delete_originals
from packer.pack import Options, Report, pack
from packer.progress import Silent
from packer.stores.choice import Dataset
from tests.packs.origin_store import OriginStore

PLACE = Place("p/")
BUCKET = "bucket"

Hook = Callable[[str, str], Awaitable[None]]


async def _nothing(_operation: str, _key: str) -> None:
    pass


class Watched:
    """An origin as another, but for `before` and `after`, which hear of every request's name and
    key (or prefix) and may raise."""

    def __init__(self, origin: Any) -> None:
        self._origin = origin
        self.requests: Counter[tuple[str, str]] = Counter()
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.held: list[Held] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._origin, name)
        if name == "close" or not inspect.iscoroutinefunction(found):
            return found

        async def asked(*arguments: Any, **named: Any) -> Any:
            key = next(
                (each.key for each in arguments[::-1] if isinstance(each, ObjectRef)),
                named.get("prefix", ""),
            )
            self.requests[name, key] += 1
            await self.before(name, key)
            answer = await found(*arguments, **named)
            await self.after(name, key)
            return answer

        return asked

    def count(self, name: str, begin: str) -> int:
        """How many requests of that name were about keys that begin so."""
        return sum(
            number
            for (operation, key), number in self.requests.items()
            if operation == name and key.startswith(begin)
        )


class BenchNode:
    """A node, and what a client would do with it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.service = parts.service
        self.packed = parts.origins["main"]
        self.origin = Watched(self.packed._origin)
        self.packed._origin = self.origin

    @property
    def pack(self) -> Pack:
        """The one pack that is known."""
        [pack] = self.packed._packs(BUCKET)._packs.values()
        return pack

    async def put(self, key: str, data: bytes, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        put = self.service.put(BUCKET, key, BytesBody(data), named, WriteConditions())
        return (await put).etag

    async def delete(self, key: str) -> None:
        await self.service.delete(BUCKET, key)

    async def get(self, key: str, first: int | None = None, last: int | None = None) -> bytes:
        wanted = RangeSpec(first, last) if first is not None or last is not None else None
        answer = await self.service.get(BUCKET, key, wanted=wanted)
        try:
            return b"".join([bytes(block) async for block in answer.blocks()])
        finally:
            await answer.close()

    async def has(self, key: str) -> bool:
        try:
            await self.service.head(BUCKET, key)
        except NoSuchKey:
            return False
        return True

    async def copy(self, source: str, target: str, **how: Any) -> None:
        told: dict[str, Any] = {
            "headers": None,
            "tagging": None,
            "source_conditions": UNCONDITIONAL,
            "conditions": WriteConditions(),
            "checksum_algorithm": None,
            **how,
        }
        await self.service.copy(BUCKET, source, None, BUCKET, target, **told)

    async def keys(self, prefix: str = "") -> dict[str, int]:
        """Every listed key and its size, a few at a time."""
        found: dict[str, int] = {}
        after: str | None = ""
        while after is not None:
            page = await self.service.list_objects(
                BUCKET, prefix=prefix, delimiter="", after=after, limit=7
            )
            found |= {entry.key: entry.size_bytes for entry in page.objects}
            after = page.next_after
        return found


class Held:
    """Holds up the first request of that name for a key that begins so."""

    def __init__(self, node: BenchNode, name: str, begin: str, *, after: bool = False) -> None:
        self.reached = asyncio.Event()
        self.going = asyncio.Event()
        node.origin.held.append(self)

        async def hold(operation: str, key: str) -> None:
            if (operation, key[: len(begin)]) == (name, begin) and not self.reached.is_set():
                self.reached.set()
                await self.going.wait()

        if after:
            node.origin.after = hold
        else:
            node.origin.before = hold


class Bench:
    """A bucket in a directory, the packer beside it, and nodes over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "data"
        (self.root / BUCKET).mkdir(parents=True)
        (folder / "secret").write_text("secret")
        self._nodes: list[BenchNode] = []
        self._beside = DirectoryOrigin("beside", self.root, Metrics())

    async def start(self) -> None:
        await self._beside.start()
        self.store = OriginStore(self._beside, BUCKET, asyncio.get_running_loop())

    async def stop(self) -> None:
        for node in self._nodes:
            for held in node.origin.held:
                # Of a test that failed.
                held.going.set()
            await node.parts.stop()
        await self._beside.close()

    async def node(
        self, *, freshness_seconds: float = 0, cache: str | None = None, **settings: Any
    ) -> BenchNode:
        """A started node. `cache`: the name of its cache's folder; `settings` of that cache."""
        number = len(self._nodes) + 1
        raw = {
            "node": {"id": f"n{number}"},
            "cache": {
                "path": str(self.folder / (cache or f"cache{number}")),
                "capacity": "32MiB",
                "chunk_size": "64KiB",
                "small_object_limit": "64KiB",
                **settings,
            },
            "default_origin": "main",
            "origins": {"main": {"type": "directory", "path": str(self.root)}},
            "buckets": {BUCKET: {"freshness_seconds": freshness_seconds}},
            "tenants": [
                {"name": "t", "access_key": "k", "secret_key_file": str(self.folder / "secret")}
            ],
        }
        parts = Parts(configuration.parse(raw))
        parts.filler._jitter = lambda: 0.0
        node = BenchNode(parts)
        await parts.start()
        self._nodes.append(node)
        return node

    async def end(self, node: BenchNode) -> None:
        """Stops a node before its time."""
        self._nodes.remove(node)
        await node.parts.stop()

    async def fill(self, objects: dict[str, bytes]) -> None:
        for key, data in objects.items():
            await asyncio.to_thread(self.store.put, key, data, headers={"content-type": "x/y"})

    async def packed(self, objects: dict[str, bytes], *, alone: bool = True, **how: Any) -> None:
        """The objects, packed; `alone`: and nothing else is left of them."""
        await self.fill(objects)
        await self.make(**how)
        if alone:
            await self.delete_originals()

    async def make(self, **changes: Any) -> Report:
        options: dict[str, Any] = {
            "dataset": Dataset(BUCKET, "p/"),
            "folder": self.folder / "spool",
            "shard_bytes": 64 * 1024,
            "jobs": 1,
            "settle_seconds": 0.0,
            **changes,
        }
        return await asyncio.to_thread(pack, self.store, Options(**options), Silent())

    async def delete_originals(self) -> None:
        spool = Path(tempfile.mkdtemp(dir=self.folder))
        await asyncio.to_thread(delete_originals, self.store, PLACE, spool, Silent())

    def files(self, kind: str) -> list[Path]:
        """What lies of the pack at the origin: "shards", "indexes", "manifests", "overrides"."""
        return sorted((self.root / BUCKET / PLACE.root / kind).glob("*"))
