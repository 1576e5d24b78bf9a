"""What is packed is prefetched by whole shards, and everything then answered from the disk."""

import random

from gateway.cluster.warming import Spec
from tests.packs.conftest import Packing
from tests.s3.running import call
from tests.waiting import until_it

CHANCE = random.Random(11)


async def test_a_packed_prefix_comes_in_by_its_shards(packing: Packing) -> None:
    objects = {f"p/{n:03}": CHANCE.randbytes(20_000) for n in range(60)}
    beside = {f"p2/{n}": CHANCE.randbytes(30_000) for n in range(3)}
    for key, data in (objects | beside).items():
        packing.put(key, data)
    packing.pack(shard_bytes=400_000)
    packing.delete_originals()
    async with packing.node() as node:
        prefetcher = node.node.parts.prefetcher
        service = node.node.service

        id_ = await prefetcher.create(Spec(packing.name, "p", (), (), (), ""), 0)

        async def is_over() -> bool:
            job = await prefetcher.get(id_)
            return job is not None and job.state != "running"

        await until_it(is_over, "the prefetch is over")
        job = await prefetcher.get(id_)
        assert job is not None

        shards = await service.shards_of(packing.name, "p/")
        assert len(shards) > 1
        assert job.objects_done == len(shards) + len(beside)
        assert job.objects_failed == 0
        assert job.bytes_done == job.bytes_found
        assert await service.held_bytes(packing.name, "p/") == 60 * 20_000
        s3 = node.client()
        for key, data in objects.items():
            answer = await call(s3.get_object, Bucket=packing.name, Key=key)
            assert await call(answer["Body"].read) == data
            headers = answer["ResponseMetadata"]["HTTPHeaders"]
            assert headers["x-feedrack-tier"] == "disk"
