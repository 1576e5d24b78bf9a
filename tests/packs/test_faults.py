"""What is damaged, missing or out of reach costs an answer, never a wrong one."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest

from gateway.errors import (
    AccessDenied,
    Corrupt,
    FeedrackError,
    NoSuchKey,
    SlowDown,
    TierUnavailable,
)
from gateway.model.objects import ObjectRef
from gateway.tiers.packed import files
from gateway.tiers.packed.appetite import Appetite
from packer.format import PACKS
from packer.format.manifest import decode_manifest, encode_manifest
from tests.packs.bench import PLACE, Bench, BenchNode

CHANCE = random.Random(11)
OBJECTS = {
    **{f"p/{number:02}": CHANCE.randbytes(CHANCE.randrange(1, 6000)) for number in range(20)},
    "p/30": CHANCE.randbytes(70_000),
    "p/31": CHANCE.randbytes(400_000),
    "p/32": CHANCE.randbytes(900_000),
}
BROKEN = (TierUnavailable, Corrupt)


async def right_or_none(node: BenchNode) -> int:
    """Reads everything, whole and in parts; how many objects were not to be had."""
    failed = 0
    for key, data in OBJECTS.items():
        for first, last in ((None, None), (1, 40), (len(data) // 2, None)):
            if first is not None and first >= len(data):
                continue
            expected = data if first is None else data[first : None if last is None else last + 1]
            try:
                assert await node.get(key, first, last) == expected
            except BROKEN:
                failed += first is None
    return failed


def flip(path: Path, seed: int, count: int) -> None:
    """Damages a file, keeping its length and its name."""
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(count):
        at = chance.randrange(len(data))
        data[at] ^= 1 + chance.randrange(255)
    path.write_bytes(data)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_a_shard_damaged_at_the_origin_gives_no_wrong_bytes(
    bench: Bench, seed: int, whole: bool
) -> None:
    await bench.packed(OBJECTS, shard_bytes=8 * 1024**2)
    [shard] = bench.files("shards")
    flip(shard, seed, 3)
    node = await bench.node(freshness_seconds=3600, chunk_size="1MiB")
    if not whole:
        node.packed._appetite = Appetite(0)
    assert 0 < await right_or_none(node) < 4


async def test_a_shard_that_came_in_damaged_once_harms_nobody(bench: Bench) -> None:
    await bench.packed(OBJECTS, shard_bytes=8 * 1024**2)
    [shard] = bench.files("shards")
    good = shard.read_bytes()
    flip(shard, 5, 4)
    node = await bench.node(freshness_seconds=3600, chunk_size="1MiB")
    assert await right_or_none(node) > 0
    shard.write_bytes(good)
    assert await right_or_none(node) == 0


@pytest.mark.parametrize("left", [0, 5_000, 600_000])
async def test_a_shard_cut_short_at_the_origin_is_unavailable(bench: Bench, left: int) -> None:
    await bench.packed(OBJECTS, shard_bytes=8 * 1024**2)
    [shard] = bench.files("shards")
    shard.write_bytes(shard.read_bytes()[:left])
    node = await bench.node(freshness_seconds=3600, capacity="4MiB")
    with pytest.raises(TierUnavailable):
        await node.get("p/32")


async def test_a_shard_that_is_missing_is_not_a_missing_key(bench: Bench) -> None:
    await bench.packed(OBJECTS, shard_bytes=8 * 1024**2)
    for shard in bench.files("shards"):
        shard.unlink()
    node = await bench.node(freshness_seconds=3600)
    with pytest.raises(FeedrackError) as failed:
        await node.get("p/00")
    assert not isinstance(failed.value, NoSuchKey)
    assert await node.has("p/00")


async def test_an_index_damaged_at_the_origin_makes_nothing_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.packed(OBJECTS)
    await bench.fill({"o": b"beside", "p/added": b"past the gateway"})
    [index] = bench.files("indexes")
    good = index.read_bytes()
    for damaged in (good[:-4096], b"", b"x" * len(good), good + b"more"):
        index.write_bytes(damaged)
        node = await bench.node()
        assert await node.get("o") == b"beside"
        assert await node.get("p/added") == b"past the gateway"
        for _ in range(2):
            with pytest.raises(TierUnavailable):
                await node.get("p/00")
            with pytest.raises(TierUnavailable):
                await node.keys()
        # It is not fetched at every read.
        assert node.origin.count("open", PLACE.indexes) == 1
        with pytest.raises(NoSuchKey):
            await node.get("q")
    index.write_bytes(good)
    with pytest.raises(TierUnavailable):
        await node.get("p/00")
    monkeypatch.setattr(files, "_DAMAGED_SECONDS", 0.0)
    assert await node.get("p/00") == OBJECTS["p/00"]


async def test_an_index_that_is_missing_makes_nothing_missing(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    [index] = bench.files("indexes")
    index.rename(bench.folder / "away")
    node = await bench.node()
    with pytest.raises(TierUnavailable):
        await node.get("p/00")
    (bench.folder / "away").rename(index)
    assert await node.get("p/00") == OBJECTS["p/00"]


@pytest.mark.parametrize("left", [0, 5000, -1])
async def test_an_index_damaged_on_this_disk_is_brought_in_anew(bench: Bench, left: int) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node(cache="cache")
    assert await node.has("p/00")
    await bench.end(node)
    [kept] = (bench.folder / "cache" / "packs").iterdir()
    good = kept.read_bytes()
    kept.write_bytes(good[:left] if left >= 0 else b"x" * len(good))
    node = await bench.node(cache="cache")
    assert await node.get("p/00") == OBJECTS["p/00"]
    assert kept.read_bytes() == good
    assert node.parts.indexes._taken_bytes == len(good)
    await bench.end(node)
    # And one that is whole is not.
    node = await bench.node(cache="cache")
    assert await node.has("p/00")
    assert not node.origin.count("open", PLACE.indexes)
    assert node.parts.indexes._taken_bytes == len(good)


async def test_a_disk_that_takes_no_index_has_it_kept_elsewhere_until_the_end(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    await bench.packed(OBJECTS)
    node = await bench.node()
    # A file where the folder should be: whoever runs the tests, it cannot be made.
    (bench.folder / "cache1" / "packs").write_bytes(b"")
    assert await right_or_none(node) == 0
    [folder] = temporary.iterdir()
    assert folder.stat().st_mode & 0o77 == 0
    assert len(list(folder.iterdir())) == 1
    await bench.end(node)
    assert not list(temporary.iterdir())


async def test_two_buckets_with_one_pack_bring_its_index_in_once(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    [index] = bench.files("indexes")
    manifest = decode_manifest(bench.files("manifests")[-1].read_bytes())
    assert manifest.index is not None
    ref = _ref(node, f"{PLACE.indexes}{index.name}")
    indexes = node.parts.indexes
    opened = await asyncio.gather(
        *(indexes.open(node.origin, ref, manifest.index) for _ in range(4))
    )
    assert node.origin.count("open", PLACE.indexes) == 1
    assert indexes._taken_bytes == index.stat().st_size
    for each in opened:
        await indexes.close(each, forget=True)
    assert indexes._taken_bytes == 0


def _ref(node: BenchNode, key: str) -> ObjectRef:
    return node.service.bucket("bucket").ref(key)


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"format_version": 2}', b""])
async def test_a_manifest_that_is_not_understood_is_left_alone(bench: Bench, raw: bytes) -> None:
    await bench.packed(OBJECTS, alone=False)
    known = await bench.node()
    assert await known.has("p/00")
    latest = bench.files("manifests")[-1]
    odd = latest.with_name("000000000099.json")
    odd.write_bytes(raw)
    # Who knows the pack cannot tell what holds now; who does not sees the objects.
    assert await known.get("p/00") == OBJECTS["p/00"]
    node = await bench.node()
    assert await node.get("p/00") == OBJECTS["p/00"]
    odd.unlink()
    while node.packed._packs("bucket").find("p/00") is None:
        assert await node.has("p/00")
        await asyncio.sleep(0)
    assert await known.get("p/01") == OBJECTS["p/01"]


async def test_a_pack_in_another_packs_place_is_left_alone(bench: Bench) -> None:
    await bench.packed(OBJECTS, alone=False)
    latest = bench.files("manifests")[-1]
    manifest = decode_manifest(latest.read_bytes())
    elsewhere = latest.parents[2] / ("0" * 32) / "manifests" / latest.name
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(encode_manifest(manifest))
    node = await bench.node()
    assert await node.get("p/00") == OBJECTS["p/00"]
    assert node.pack.place.root == PLACE.root


async def test_a_new_generation_that_did_not_come_in_is_tried_again(bench: Bench) -> None:
    await bench.packed(OBJECTS, alone=False)
    node = await bench.node()
    assert await node.has("p/00")
    before = node.pack.manifest
    await bench.fill({"p/added": b"added"})
    await bench.make()
    failures = [TierUnavailable("away"), SlowDown(), NoSuchKey()]

    async def fail(operation: str, key: str) -> None:
        if operation == "open" and key.startswith(PLACE.indexes) and failures:
            raise failures.pop()

    node.origin.before = fail
    while failures:
        assert await node.get("p/00") == OBJECTS["p/00"]
        await asyncio.sleep(0)
    while node.pack.manifest is before:
        assert await node.get("p/00") == OBJECTS["p/00"]
        await asyncio.sleep(0)
    assert await node.get("p/added") == b"added"


@pytest.mark.parametrize("error", [TierUnavailable("500"), SlowDown(), AccessDenied()])
async def test_where_packs_cannot_be_listed_objects_can_still_be_read(
    bench: Bench, error: FeedrackError
) -> None:
    await bench.packed(OBJECTS, alone=False)
    await bench.fill({"o": b"beside"})
    node = await bench.node()

    async def fail(operation: str, key: str) -> None:
        if operation == "list_objects" and key.startswith(PACKS):
            raise error

    node.origin.before = fail
    assert await node.get("p/00") == OBJECTS["p/00"]
    assert await node.get("o") == b"beside"
    refused = NoSuchKey if isinstance(error, AccessDenied) else TierUnavailable
    with pytest.raises(refused):
        await node.get("p/missing")


async def test_where_a_packs_files_are_forbidden_objects_can_still_be_read(bench: Bench) -> None:
    await bench.packed(OBJECTS, alone=False)
    node = await bench.node()

    async def forbid(operation: str, key: str) -> None:
        if operation == "open" and key.startswith(PACKS):
            raise AccessDenied

    node.origin.before = forbid
    assert await node.get("p/00") == OBJECTS["p/00"]
    with pytest.raises(FeedrackError) as failed:
        await node.get("p/missing")
    assert not isinstance(failed.value, NoSuchKey)


async def test_a_known_pack_answers_without_its_origin_as_long_as_it_is_fresh(
    bench: Bench,
) -> None:
    await bench.packed(OBJECTS)
    fresh, asking = await bench.node(freshness_seconds=3600), await bench.node()
    for node in (fresh, asking):
        assert await right_or_none(node) == 0

    async def away(_operation: str, _key: str) -> None:
        raise TierUnavailable("away")

    for node in (fresh, asking):
        node.origin.before = away
    assert await right_or_none(fresh) == 0
    with pytest.raises(TierUnavailable):
        await fresh.put("p/00", b"new")
    with pytest.raises(TierUnavailable):
        await fresh.get("p/missing")
    with pytest.raises(TierUnavailable):
        await asking.get("p/00")
