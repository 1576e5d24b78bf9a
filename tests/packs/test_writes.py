"""Conditions, copies, tags and versions of packed keys are as before packing, though the origin has
nothing of them any more."""

import asyncio
import io
import tarfile
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.errors import PreconditionFailed
from gateway.model.body import BytesBody
from gateway.model.conditions import Conditions, WriteConditions
from tests.packs.bench import BUCKET, Bench, BenchNode, Held
from tests.packs.conftest import Packing
from tests.s3.running import call

OBJECTS = {f"p/{number:02}": b"packed %d" % number for number in range(8)}


async def tags(node: BenchNode, key: str) -> dict[str, str]:
    return dict(await node.service.get_tags(BUCKET, key, None))


async def tag(node: BenchNode, key: str, **told: str) -> None:
    await node.service.put_tags(BUCKET, key, None, list(told.items()))


@pytest.mark.parametrize("alone", [True, False])
async def test_conditions_of_writes_are_held_against_the_pack(bench: Bench, alone: bool) -> None:
    await bench.packed(OBJECTS, alone=alone)
    node = await bench.node()
    etag = (await node.service.head(BUCKET, "p/00")).info.etag

    async def put(key: str, **conditions: Any) -> None:
        body = BytesBody(b"new")
        await node.service.put(BUCKET, key, body, {}, WriteConditions(**conditions))

    for key in ("p/00", "p/01"):
        with pytest.raises(PreconditionFailed):
            await put(key, if_none_match_any=True)
        with pytest.raises(PreconditionFailed):
            await put(key, if_match="another")
        with pytest.raises(PreconditionFailed):
            await node.service.delete(BUCKET, key, conditions=WriteConditions(if_match="another"))
        assert await node.get(key) == OBJECTS[key]
    await put("p/00", if_match=etag)
    assert await node.get("p/00") == b"new"
    with pytest.raises(PreconditionFailed):
        await put("p/00", if_match=etag)
    await put("p/01", if_match="*")
    etag = (await node.service.head(BUCKET, "p/02")).info.etag
    await node.service.delete(BUCKET, "p/02", conditions=WriteConditions(if_match=etag))
    assert not await node.has("p/02")
    await put("p/02", if_none_match_any=True)
    with pytest.raises(PreconditionFailed):
        await put("p/02", if_none_match_any=True)


@pytest.mark.parametrize("alone", [True, False])
async def test_copies_of_packed_keys_carry_what_copies_do(bench: Bench, alone: bool) -> None:
    await bench.packed(OBJECTS, alone=alone)
    node = await bench.node()
    await tag(node, "p/00", a="1")
    await node.copy("p/00", "p/kept")
    await node.copy("p/00", "q/other", headers={"content-type": "z/z"}, tagging="b=2")
    for key, kind, told in (("p/kept", "x/y", {"a": "1"}), ("q/other", "z/z", {"b": "2"})):
        assert await node.get(key) == OBJECTS["p/00"]
        info = (await node.service.head(BUCKET, key)).info
        assert info.headers["content-type"] == kind
        assert await tags(node, key) == told
    etag = (await node.service.head(BUCKET, "p/01")).info.etag
    with pytest.raises(PreconditionFailed):
        await node.copy("p/01", "p/no", source_conditions=Conditions(if_none_match=(etag,)))
    await node.copy("p/01", "p/01", headers={"content-type": "self/x"})
    assert await node.get("p/01") == OBJECTS["p/01"]
    assert (await node.service.head(BUCKET, "p/01")).info.headers["content-type"] == "self/x"


@pytest.mark.parametrize("alone", [True, False])
async def test_tags_of_packed_keys_outlast_restarts_and_repacking(
    bench: Bench, alone: bool
) -> None:
    await bench.packed(OBJECTS, alone=alone)
    node = await bench.node()
    await tag(node, "p/00", a="1")
    await tag(node, "p/01", b="2")
    await node.service.delete_tags(BUCKET, "p/01", None)
    for _ in range(2):
        for each in (node, await bench.node()):
            assert await tags(each, "p/00") == {"a": "1"}
            assert await tags(each, "p/01") == {}
            info = (await each.service.head(BUCKET, "p/00")).info
            assert info.headers["x-amz-tagging-count"] == "1"
            assert info.headers["content-type"] == "x/y"
            assert await each.get("p/00") == OBJECTS["p/00"]
            assert set(await each.keys()) == set(OBJECTS)
        await bench.make()


async def test_tags_written_at_one_time_lose_no_object(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    await asyncio.gather(*(tag(node, "p/00", a=str(number)) for number in range(4)))
    assert await node.get("p/00") == OBJECTS["p/00"]
    assert len(await tags(node, "p/00")) == 1
    # A write under way keeps the tags waiting, and they are then the written object's.
    held = Held(node, "put", "p/01")
    writing = asyncio.create_task(node.put("p/01", b"new"))
    await held.reached.wait()
    tagging = asyncio.create_task(tag(node, "p/01", b="2"))
    for _ in range(20):
        await asyncio.sleep(0)
    held.going.set()
    await asyncio.gather(writing, tagging)
    assert await node.get("p/01") == b"new"
    assert await tags(node, "p/01") == {"b": "2"}


async def test_tags_written_through_two_nodes_lose_no_object(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    one, other = await bench.node(), await bench.node()
    await tag(one, "p/00", a="1")
    await tag(other, "p/00", a="2")
    for each in (one, other, await bench.node()):
        assert await each.get("p/00") == OBJECTS["p/00"]
        assert await tags(each, "p/00") == {"a": "2"}
        assert (await each.keys())["p/00"] == len(OBJECTS["p/00"])
    await tag(one, "p/00", a="3")
    await one.copy("p/00", "p/copied")
    assert await tags(other, "p/copied") == {"a": "3"}
    await other.delete("p/00")
    for each in (one, other):
        assert not await each.has("p/00")
    await bench.make()
    assert not await one.has("p/00")


async def test_the_same_bytes_written_through_two_nodes_outlast_their_original(
    bench: Bench,
) -> None:
    await bench.packed(OBJECTS, alone=False)
    one, other = await bench.node(), await bench.node()
    for node in (one, other):
        await node.put("p/00", OBJECTS["p/00"], content_type="by/other")
    # As when the originals were being deleted meanwhile: told apart by ETag, they are the same.
    (bench.root / BUCKET / "p/00").unlink()
    for node in (one, other, await bench.node()):
        assert await node.get("p/00") == OBJECTS["p/00"]
        info = (await node.service.head(BUCKET, "p/00")).info
        assert info.headers["content-type"] == "by/other"


async def test_members_of_archives_are_copied_tagged_and_replaced_as_objects_are(
    bench: Bench,
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("a.txt", "b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"bytes"))
    await bench.packed({"p/x.tar": archive.getvalue()}, alone=False, source="webdataset")
    node = await bench.node()
    assert await node.get("p/x/a.txt") == b"bytes"
    await node.copy("p/x/a.txt", "p/copied")
    assert await node.get("p/copied") == b"bytes"
    await tag(node, "p/x/a.txt", a="1")
    assert await tags(node, "p/x/a.txt") == {"a": "1"}
    assert await node.get("p/x/a.txt") == b"bytes"
    etag = (await node.service.head(BUCKET, "p/x/b.txt")).info.etag
    conditions = WriteConditions(if_match=etag)
    await node.service.put(BUCKET, "p/x/b.txt", BytesBody(b"new"), {}, conditions)
    assert await node.get("p/x/b.txt") == b"new"


async def test_old_versions_come_and_go_without_taking_a_packed_key_along(
    s3_packing: Packing,
) -> None:
    packing, name = s3_packing, s3_packing.name
    packing.behind.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    versions = {}
    for key, data in OBJECTS.items():
        versions[key] = packing.behind.put_object(Bucket=name, Key=key, Body=data)["VersionId"]
    packing.pack()
    packing.delete_originals()
    async with packing.node() as node:
        s3 = node.client()

        async def body(key: str) -> bytes:
            got = await call(s3.get_object, Bucket=name, Key=key)
            data: bytes = await call(got["Body"].read)
            return data

        old = versions["p/00"]
        told = {"TagSet": [{"Key": "a", "Value": "1"}]}
        await call(s3.put_object_tagging, Bucket=name, Key="p/00", VersionId=old, Tagging=told)
        assert await body("p/00") == OBJECTS["p/00"]
        await call(s3.delete_object, Bucket=name, Key="p/00", VersionId=old)
        assert await body("p/00") == OBJECTS["p/00"]
        many = [{"Key": key, "VersionId": versions[key]} for key in ("p/01", "p/02")]
        await call(s3.delete_objects, Bucket=name, Delete={"Objects": many})
        for key in ("p/01", "p/02"):
            assert await body(key) == OBJECTS[key]
        page = await call(s3.list_objects_v2, Bucket=name, Prefix="p/")
        assert [entry["Key"] for entry in page["Contents"]] == list(OBJECTS)
        await call(s3.delete_object, Bucket=name, Key="p/03")
        with pytest.raises(ClientError):
            await body("p/03")
        s3.close()


async def test_parts_are_copied_from_packed_keys_and_uploads_replace_them(
    s3_packing: Packing,
) -> None:
    packing, name = s3_packing, s3_packing.name
    large = bytes(range(256)) * 4096 * 6
    packing.put("p/large", large)
    packing.put("p/small", b"small")
    packing.pack(largest_bytes=16 * 1024**2)
    packing.delete_originals()
    async with packing.node() as node:
        s3 = node.client()
        etag = (await call(s3.head_object, Bucket=name, Key="p/small"))["ETag"]
        for conditions, status in (({"IfNoneMatch": "*"}, 412), ({"IfMatch": etag}, 200)):
            upload = await call(s3.create_multipart_upload, Bucket=name, Key="p/small")
            where = {"Bucket": name, "Key": "p/small", "UploadId": upload["UploadId"]}
            source = {"Bucket": name, "Key": "p/large"}
            last = len(large) - 100_000
            parts = []
            for number, wanted in ((1, f"bytes=0-{last - 1}"), (2, f"bytes={last}-{last + 9}")):
                copied = await call(
                    s3.upload_part_copy,
                    **where,
                    PartNumber=number,
                    CopySource=source,
                    CopySourceRange=wanted,
                )
                etag_of_part = copied["CopyPartResult"]["ETag"]
                parts.append({"PartNumber": number, "ETag": etag_of_part})
            complete = {**where, "MultipartUpload": {"Parts": parts}, **conditions}
            if status == 200:
                await call(s3.complete_multipart_upload, **complete)
            else:
                with pytest.raises(ClientError) as refused:
                    await call(s3.complete_multipart_upload, **complete)
                assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        got = await call(s3.get_object, Bucket=name, Key="p/small")
        assert await call(got["Body"].read) == large[: last + 10]
        s3.close()
