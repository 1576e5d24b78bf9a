"""A real directory origin behind a gate: it counts, waits and breaks off when a test says so."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gateway.config import BucketConfig, CacheConfig, Config, DirectoryOriginConfig
from gateway.errors import TierUnavailable
from gateway.model.objects import ObjectInfo
from gateway.model.ranges import ByteRange
from gateway.store.buckets import BucketTable
from gateway.store.fill import Filler
from gateway.store.service import ObjectService
from gateway.store.versions import VersionTable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.protocol import OpenedObject

CHUNK_BYTES = 1024 * 1024
SMALL_BYTES = 128 * 1024
_BLOCK_BYTES = 256 * 1024


class GatedOrigin:
    """Everything passes to `inner`. `open_gate` holds opens, `block_gate` holds each answer's
    blocks but for its first `free_bytes`; `break_after_bytes` breaks the next `breaks` answers
    off; `down` makes all unavailable."""

    def __init__(self, inner: DirectoryOrigin) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.read_bytes = 0
        self.open_gate = asyncio.Event()
        self.block_gate = asyncio.Event()
        self.write_gate = asyncio.Event()
        for gate in (self.open_gate, self.block_gate, self.write_gate):
            gate.set()
        self.free_bytes = 0
        self.break_after_bytes = 0
        self.breaks = 0
        self.down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def head(self, *args: Any, **kwargs: Any) -> ObjectInfo:
        self.calls["head"] += 1
        self._check()
        await self.open_gate.wait()
        return await self.inner.head(*args, **kwargs)

    async def open(self, *args: Any, **kwargs: Any) -> "GatedOpened":
        self.calls["open"] += 1
        self._check()
        await self.open_gate.wait()
        return GatedOpened(self, await self.inner.open(*args, **kwargs))

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        self.calls["put"] += 1
        self._check()
        result = await self.inner.put(*args, **kwargs)
        await self.write_gate.wait()
        return result

    def _check(self) -> None:
        if self.down:
            raise TierUnavailable("the origin is down")


class GatedOpened:
    def __init__(self, gate: GatedOrigin, inner: OpenedObject) -> None:
        self._gate = gate
        self._inner = inner
        self._sent_bytes = 0

    @property
    def info(self) -> ObjectInfo:
        return self._inner.info

    @property
    def range(self) -> ByteRange:
        return self._inner.range

    async def blocks(self) -> AsyncIterator[bytes]:
        memory = memoryview(bytearray(_BLOCK_BYTES))
        while size_bytes := await self.read_into(memory):
            yield bytes(memory[:size_bytes])

    async def read_into(self, memory: memoryview) -> int:
        gate = self._gate
        if self._sent_bytes >= gate.free_bytes:
            await gate.block_gate.wait()
        else:
            memory = memory[: gate.free_bytes - self._sent_bytes]
        if gate.breaks:
            memory = memory[: gate.break_after_bytes - self._sent_bytes]
            if not memory:
                gate.breaks -= 1
                raise TierUnavailable("broken off by the test")
        size_bytes = await self._inner.read_into(memory)
        self._sent_bytes += size_bytes
        gate.read_bytes += size_bytes
        return size_bytes

    async def close(self) -> None:
        await self._inner.close()


class Bench:
    """An object service over one gated directory origin and a real disk cache."""

    def __init__(
        self,
        folder: Path,
        *,
        bucket: BucketConfig | None = None,
        others: Mapping[str, BucketConfig] | None = None,
        capacity_bytes: int = 64 << 20,
    ) -> None:
        root = self.root = folder / "origin"
        root.mkdir(parents=True, exist_ok=True)
        self.metrics = Metrics()
        self.origin = GatedOrigin(DirectoryOrigin("main", root, self.metrics))
        cache = CacheConfig(
            path=folder / "cache",
            capacity=capacity_bytes,  # type: ignore[arg-type]
            chunk_size=CHUNK_BYTES,  # type: ignore[arg-type]
            small_object_limit=SMALL_BYTES,  # type: ignore[arg-type]
        )
        config = Config(
            origins={"main": DirectoryOriginConfig(path=root)},
            buckets={"train": bucket or BucketConfig(freshness_seconds=3600), **(others or {})},
            cache=cache,
        )
        self.seconds = 0.0
        self.disk = DiskTier(cache, self.metrics)
        self.filler = Filler(
            self.disk, self.metrics, small_object_limit_bytes=SMALL_BYTES, jitter=lambda: 0.0
        )
        self.service = ObjectService(
            buckets=BucketTable(config, {"main": self.origin}),
            disk=self.disk,
            filler=self.filler,
            versions=VersionTable(now=lambda: self.seconds),
            cache=cache,
        )

    async def __aenter__(self) -> "Bench":
        await self.origin.inner.start()
        await self.disk.start()
        await self.service.create_bucket("train")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.close()
        await self.disk.close()
        await self.origin.inner.close()

    async def read(self, key: str, **how: Any) -> bytes:
        answer = await self.service.get("train", key, **how)
        try:
            return b"".join([bytes(block) async for block in answer.blocks()])
        finally:
            await answer.close()
