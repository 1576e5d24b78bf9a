"""Until what an earlier process handed out is over, no write under a pack is answered."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.tiers.packed.handing import LEASE_SECONDS
from tests.packs.conftest import Packing
from tests.s3.running import Running, call


@asynccontextmanager
async def packed_node(packing: Packing) -> AsyncIterator[Running]:
    for number in range(3):
        packing.put(f"p/{number}", b"x" * 1000)
    packing.pack()
    async with packing.node() as node:
        yield node


async def test_a_node_that_has_just_begun_answers_writes_of_packed_keys_late(
    packing: Packing,
) -> None:
    async with packed_node(packing) as node:
        begun = node.node.parts.handing._begun_at
        assert begun is not None
        s3 = node.client()
        await call(s3.put_object, Bucket=packing.name, Key="p/1", Body=b"new")
        assert time.monotonic() - begun >= LEASE_SECONDS
        got = await call(s3.get_object, Bucket=packing.name, Key="p/1")
        assert await call(got["Body"].read) == b"new"
        s3.close()


async def test_it_answers_reads_and_other_writes_at_once(packing: Packing) -> None:
    async with packed_node(packing) as node:
        s3 = node.client()
        # A write of no pack's key does not ask how long ago the node began.
        handing = node.node.parts.handing
        handing._begun_at = time.monotonic() + 3600
        await call(s3.put_object, Bucket=packing.name, Key="q/1", Body=b"other")
        got = await call(s3.get_object, Bucket=packing.name, Key="p/1")
        assert await call(got["Body"].read) == b"x" * 1000
        s3.close()
