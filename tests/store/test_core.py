"""What all writes go through: nothing they replace comes back behind them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import BucketConfig
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL_WRITE
from gateway.model.objects import PutResult
from tests.store.gated import Bench


def _like_s3(put: Any) -> Any:
    """S3 does not say all that a head would, so a write teaches nothing."""

    async def put_like_s3(*args: Any, **kwargs: Any) -> PutResult:
        written: PutResult = await put(*args, **kwargs)
        return msgspec.structs.replace(written, info=None)

    return put_like_s3


async def test_what_a_write_replaces_is_not_remembered_on_disk_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path, bucket=BucketConfig(immutable=True)) as bench:
        ref = bench.service.bucket("train").ref("k")
        put = bench.origin.inner.put
        await put(ref, BytesBody(b"old"), {}, UNCONDITIONAL_WRITE)

        monkeypatch.setattr(bench.origin, "put", _like_s3(put))
        reader = asyncio.create_task(bench.service.head("train", "k"))
        while bench.service._versions.trusted(ref, None) is None:
            await asyncio.sleep(0)
        # The old version has just been learned and is about to be remembered on disk.
        written = await bench.service.put("train", "k", BytesBody(b"new"), {}, UNCONDITIONAL_WRITE)
        await reader
        await bench.service.settle()
        assert (await bench.service.head("train", "k")).info.etag == written.etag
        assert await bench.read("k") == b"new"


async def test_a_write_by_one_name_is_seen_by_another_that_calls_the_bucket_immutable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = BucketConfig(origin_bucket="train", freshness_seconds=60)
    async with Bench(
        tmp_path, bucket=BucketConfig(immutable=True), others={"inbox": inbox}
    ) as bench:
        put = bench.origin.inner.put
        await put(
            bench.service.bucket("train").ref("k"), BytesBody(b"old"), {}, UNCONDITIONAL_WRITE
        )
        assert await bench.read("k") == b"old"
        await bench.service.settle()
        monkeypatch.setattr(bench.origin, "put", _like_s3(put))
        await bench.service.put("inbox", "k", BytesBody(b"new"), {}, UNCONDITIONAL_WRITE)
        assert await bench.read("k") == b"new"
