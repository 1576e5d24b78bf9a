"""What a node says that it holds of a packed dataset."""

import random

from tests.packs.conftest import Packing
from tests.s3.running import call

CHANCE = random.Random(8)
# A shard must be large enough to have a file of its own.
OBJECTS = {f"p/{n % 2}/{n:03}": CHANCE.randbytes(3000) for n in range(60)}


async def test_shards_that_are_held_count_for_the_objects_in_them(packing: Packing) -> None:
    for key, data in OBJECTS.items():
        packing.put(key, data)
    packing.pack(shard_bytes=100_000)
    async with packing.node() as node:
        service, s3 = node.node.service, node.client()
        assert await service.held_bytes(packing.name, "p/") == 0
        for key in sorted(OBJECTS):
            got = await call(s3.get_object, Bucket=packing.name, Key=key)
            await call(got["Body"].read)
        await service.settle()
        whole = sum(len(data) for data in OBJECTS.values())
        for prefix in ("", "p/"):
            assert await service.held_bytes(packing.name, prefix) == whole
        assert await service.held_bytes(packing.name, "p/1/") == whole / 2
        assert await service.held_bytes(packing.name, "q/") == 0
        s3.close()
