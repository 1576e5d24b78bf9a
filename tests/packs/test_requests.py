"""What packs cost at the origin for keys that are in none of their shards."""

import pytest

from tests.packs.conftest import Packing
from tests.s3.running import Running, call


def asked(node: Running) -> dict[str, float]:
    """The requests that the node has sent to its origin, by operation."""
    return {
        sample.labels["operation"]: sample.value
        for metric in node.node.metrics.registry.collect()
        if metric.name == "feedrack_origin_requests"
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


async def test_objects_beside_the_shards_cost_what_they_did_without(s3_packing: Packing) -> None:
    packing = s3_packing
    for number in range(4):
        packing.put(f"p/large{number}", bytes(5000))
        packing.put(f"p/small{number}", b"s")
    packing.pack(largest_bytes=4999)
    async with packing.node() as node:
        s3 = node.client()
        await call(s3.get_object, Bucket=packing.name, Key="p/small0")
        before = asked(node)
        for number in range(4):
            got = await call(s3.get_object, Bucket=packing.name, Key=f"p/large{number}")
            assert await call(got["Body"].read) == bytes(5000)
        after = asked(node)
        assert after["ListObjectsV2"] == before["ListObjectsV2"]
        assert after["GetObject"] == before["GetObject"] + 4
        # A key that nobody has takes one look at whether there is a newer pack.
        for number in range(3):
            with pytest.raises(s3.exceptions.NoSuchKey):
                await call(s3.get_object, Bucket=packing.name, Key=f"p/none{number}")
        assert asked(node)["ListObjectsV2"] == after["ListObjectsV2"] + 3
        s3.close()


async def test_a_warm_listing_asks_the_origin_nothing(s3_packing: Packing) -> None:
    packing = s3_packing
    for number in range(20):
        packing.put(f"p/{number:02}", b"s")
    packing.pack()
    async with packing.node() as node:
        s3 = node.client()
        await call(s3.list_objects_v2, Bucket=packing.name, Prefix="p/", MaxKeys=3)
        before = asked(node)
        paginator = s3.get_paginator("list_objects_v2")
        pages = await call(
            lambda **how: list(paginator.paginate(**how)),
            Bucket=packing.name,
            Prefix="p/",
            PaginationConfig={"PageSize": 3},
        )
        assert sum(len(page["Contents"]) for page in pages) == 20
        assert asked(node) == before
        s3.close()
