"""A batch brings packed objects and plain ones, and nobody sees which is which."""

import random
from pathlib import Path

import pytest

from tests.packs.conftest import Packing
from tests.s3.batch_reading import Frame, ask, document, frames_of, parse_frames
from tests.s3.running import Running, call

CHANCE = random.Random(9)
OBJECTS = {
    **{f"p/{n:03}": CHANCE.randbytes(CHANCE.randrange(1, 9000)) for n in range(40)},
    **{f"p/image-{n}": CHANCE.randbytes(60_000) for n in range(30)},
    "p/empty": b"",
    "p/large": CHANCE.randbytes(3_000_000),
    **{f"plain/{n}": CHANCE.randbytes(1000 * n) for n in range(10)},
}


async def read(node: Running, bucket: str, asked: list[object]) -> list[Frame]:
    frames, _ = await frames_of(node, asked, bucket=bucket)
    return frames


@pytest.mark.parametrize("deleted", [False, True])
async def test_packed_and_plain_objects_come_in_one_answer(packing: Packing, deleted: bool) -> None:
    for key, data in OBJECTS.items():
        packing.put(key, data, content_type="x/y")
    packing.pack()
    if deleted:
        packing.delete_originals()
    keys = [CHANCE.choice([*OBJECTS, "p/missing"]) for _ in range(200)]
    ranges = [
        {"key": key, "range": "bytes=5-3000"} for key in keys if len(OBJECTS.get(key, b"")) > 5
    ]
    async with packing.node() as node:
        s3 = node.client()
        for _ in range(2):
            frames = await read(node, packing.name, [*keys])
            assert [frame.body for frame in frames] == [OBJECTS.get(key, b"") for key in keys]
            frames = await read(node, packing.name, [*ranges])
            assert [frame.body for frame in frames] == [
                OBJECTS[each["key"]][5:3001] for each in ranges
            ]
        for frame, each in zip(frames[:20], ranges, strict=False):
            head = await call(s3.head_object, Bucket=packing.name, Key=each["key"])
            assert f'"{frame.told["etag"]}"' == head["ETag"]
            assert frame.told["modified_ms"] // 1000 == head["LastModified"].timestamp()
            assert frame.told["content_type"] == head["ContentType"]
        # What is written after packing wins, and what is deleted is gone.
        await call(s3.put_object, Bucket=packing.name, Key="p/000", Body=b"new")
        await call(s3.delete_object, Bucket=packing.name, Key="p/001")
        frames = await read(node, packing.name, ["p/000", "p/001", "p/002"])
        assert [frame.status for frame in frames] == [200, 404, 200]
        assert frames[0].body == b"new"
        s3.close()


async def test_what_packs_are_made_of_is_not_in_any_batch(packing: Packing) -> None:
    for key, data in OBJECTS.items():
        packing.put(key, data)
    packing.pack()
    hidden = packing.keys(".feedrack/")[:3]
    assert hidden
    async with packing.node() as node:
        body = document([*hidden, "p/000"], format="frames")
        frames, told = parse_frames((await ask(node, body, bucket=packing.name)).body)
        assert told == {"objects": 4, "failed": 3}
        assert all(not frame.body for frame in frames[:3])
        assert frames[3].body == OBJECTS["p/000"]


@pytest.mark.parametrize("key", ["p/003", "p/image-3"])
async def test_a_shard_that_was_damaged_here_is_noticed_whoever_reads(
    packing: Packing, key: str
) -> None:
    for name, data in OBJECTS.items():
        packing.put(name, data)
    packing.pack(shard_bytes=1024**2)
    packing.delete_originals()
    keys = [name for name in OBJECTS if name.startswith("p/")]
    async with packing.node() as node:
        held = node.node.service.held
        bucket = node.node.service.bucket(packing.name)
        shards: list[Path] = []
        # A shard's file has its name a moment before the shard counts as held.
        while not (shards and held.holds(bucket, key)):
            await read(node, packing.name, [*keys])
            shards = [
                path
                for path in (packing.folder / "node" / "cache" / "chunks").rglob("*")
                if path.is_file() and OBJECTS[key] in path.read_bytes()
            ]
        [shard] = shards
        with shard.open("r+b") as file:
            file.seek(shard.read_bytes().index(OBJECTS[key]) + 100)
            file.write(bytes(10))
        frames = await read(node, packing.name, [*keys])
        assert [frame.body for frame in frames] == [OBJECTS[name] for name in keys]
        assert node.node.metrics.cache_corrupt._value.get() == 1
