"""What the tests of the disk cache share: objects whose bytes follow from their name, and ways to
put them in and get them out."""

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gateway.config import Bytes, CacheConfig
from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, Span
from gateway.model.ranges import span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.kernel import Residency

KIB = 1024
MIB = 1024 * KIB
CHUNK_BYTES = 256 * KIB
SMALL_BYTES = 64 * KIB


def cache_config(path: Path, capacity_bytes: int = 16 * MIB) -> CacheConfig:
    return CacheConfig(
        path=path,
        capacity=Bytes(capacity_bytes),
        chunk_size=Bytes(CHUNK_BYTES),
        small_object_limit=Bytes(SMALL_BYTES),
    )


def version(key: str, size_bytes: int, etag: str = "e1") -> ObjectVersion:
    return ObjectVersion(ObjectRef("main", "bucket", key), etag, size_bytes)


def info(of: ObjectVersion) -> ObjectInfo:
    return ObjectInfo(etag=of.etag, size_bytes=of.size_bytes, last_modified_ms=1)


def content(of: ObjectVersion) -> bytes:
    """The object's bytes, which follow from its name alone."""
    seed = f"{of.ref.key} {of.etag}".encode("utf-8", "surrogatepass")
    return random.Random(seed).randbytes(of.size_bytes)


def chunks(of: ObjectVersion) -> list[Span]:
    count = max(1, -(-of.size_bytes // CHUNK_BYTES))
    return [span(of, number, CHUNK_BYTES) for number in range(count)]


async def put(tier: DiskTier, of: ObjectVersion) -> None:
    """Keeps a whole object, small or large."""
    data = content(of)
    if of.size_bytes <= SMALL_BYTES:
        await tier.keep(span(of, 0, CHUNK_BYTES), data)
        return
    for chunk in chunks(of):
        await put_chunk(tier, chunk)


async def put_chunk(tier: DiskTier, chunk: Span, piece_bytes: int = 100_000) -> None:
    data = content(chunk.version)[chunk.start : chunk.stop]
    writer = await tier.begin(chunk.size_bytes)
    try:
        for start in range(0, len(data), piece_bytes):
            await writer.append(data[start : start + piece_bytes])
        await writer.commit(chunk)
    finally:
        await writer.discard()


async def get_span(tier: DiskTier, chunk: Span) -> bytes | None:
    """The span's bytes, None where it is not held. Corrupt goes through."""
    reader = await tier.open(chunk)
    if reader is None:
        return None
    try:
        data = b""
        while len(data) < chunk.size_bytes:
            block = await reader.read(len(data), 100_000)
            assert block
            data += bytes(block)
        return data
    finally:
        await reader.close()


async def get(tier: DiskTier, of: ObjectVersion) -> bytes | None:
    """The whole object's bytes, None where a part of it is not held."""
    pieces = [await get_span(tier, chunk) for chunk in chunks(of)]
    return None if None in pieces else b"".join(piece for piece in pieces if piece is not None)


async def settled(tier: DiskTier) -> None:
    """Everything that waited in memory is in its file, and no shard grows any more."""
    holding = tier._holding
    assert holding is not None
    await holding.small.log.seal()
    assert await holding.index.flush()


def files(path: Path, *kinds: str) -> list[Path]:
    """The files of the cache that are chunks, or shards."""
    found = (file for kind in kinds for file in (path / kind).rglob("*"))
    return sorted(file for file in found if file.is_file())


@contextmanager
def descriptor_of(path: Path) -> Iterator[int]:
    """A descriptor of the file, beside those that the cache has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def evict_pages(descriptor: int) -> None:
    """Puts a file out of the page cache. Skips where its file system lives there."""
    os.fsync(descriptor)
    size_bytes = os.fstat(descriptor).st_size
    residency = Residency()
    for _ in range(100):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not any(residency.holds(descriptor, at, 1) for at in range(0, size_bytes, 4096)):
            return
    pytest.skip("the file system keeps all its pages in memory")


def on_disk_bytes(path: Path) -> int:
    """What all files of the folder take, files that vanish meanwhile aside."""
    total = 0
    for file in path.rglob("*"):
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue
        if file.is_file():
            total += stat.st_size
    return total


@asynccontextmanager
async def opened(
    config: CacheConfig, metrics: Metrics | None = None, *, look_seconds: float = 2.0
) -> AsyncIterator[DiskTier]:
    """A running tier, closed cleanly at the end."""
    tier = DiskTier(config, metrics or Metrics(), look_seconds=look_seconds)
    await tier.start()
    try:
        yield tier
    finally:
        await tier.close()


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    """The present value of a metric, 0 where it was never touched."""
    return metrics.registry.get_sample_value(name, labels) or 0.0
