"""Keys of a pack answer as before packing, with originals kept or deleted."""

import random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.tiers.packed import known
from tests.packs.conftest import Digest, Packing, differences, everything
from tests.s3.running import Running, call

CHANCE = random.Random(4)
OBJECTS = {
    **{f"p/{n // 10}/{n:03}.bin": CHANCE.randbytes(CHANCE.randrange(1, 9000)) for n in range(30)},
    "p/empty": b"",
    "p/" + "long/" * 150 + "x": b"a long key",
    "p/tagged é ☃": b"a name",
    "p/large": CHANCE.randbytes(70_000),
    "p/larger": CHANCE.randbytes(3_000_000),
    "other": b"not packed",
    "q/other": b"neither",
}


def fill(packing: Packing) -> None:
    for key, data in OBJECTS.items():
        if packing.behind is None and key.startswith("p/long"):
            continue
        packing.put(key, data, content_type="x/y", x_amz_meta_name="value", cache_control="no")


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_pack_answers_as_its_objects_did(packing: Packing, deleted: bool) -> None:
    fill(packing)
    async with packing.node("before") as node:
        before = await everything(node, packing.name)
    assert set(before) >= {"p/empty", "other", "p/larger"}
    packing.pack()
    if deleted:
        assert packing.delete_originals() > 30
        assert packing.keys() == ["p/larger"]
    async with packing.node("after") as node:
        assert not differences(await everything(node, packing.name), before)
        # Once more, warm.
        assert not differences(await everything(node, packing.name), before)


async def questions(node: Running, name: str) -> dict[str, list[Any]]:
    """What is asked of an object beside GET: HEAD, ranges, conditions, tags."""
    s3 = node.client()
    seen: dict[str, list[Any]] = {}
    for key in ("p/0/001.bin", "p/empty", "p/tagged é ☃", "p/large"):
        at = {"Bucket": name, "Key": key}
        head = await call(s3.head_object, **at)
        answers = [head]
        for asked in (
            {"Range": "bytes=0-0"},
            {"Range": "bytes=-3"},
            {"Range": "bytes=90000-"},
            {"IfMatch": head["ETag"]},
            {"IfMatch": '"other"'},
            {"IfNoneMatch": head["ETag"]},
            {"IfModifiedSince": head["LastModified"]},
            {"IfUnmodifiedSince": head["LastModified"]},
        ):
            try:
                got = await call(s3.get_object, **at, **asked)
                answers.append((got.pop("Body").read(), got))
            except ClientError as error:
                answers.append(error.response)
        answers.append(await call(s3.get_object_tagging, **at))
        seen[key] = [plain(answer) for answer in answers]
    s3.close()
    return seen


def plain(answer: Any) -> Any:
    """An answer without what is of this one answer."""
    if isinstance(answer, tuple):
        return answer[0], plain(answer[1])
    kept = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
    if "Error" in kept:
        kept["Error"] = {"Code": kept["Error"]["Code"]}
    return kept | {"status": answer["ResponseMetadata"]["HTTPStatusCode"]}


@pytest.mark.parametrize("deleted", [False, True])
async def test_heads_ranges_conditions_and_tags_are_as_before(
    packing: Packing, deleted: bool
) -> None:
    fill(packing)
    if packing.behind is not None:
        packing.put("p/tagged é ☃", b"a name", x_amz_tagging="a=1&b=%C3%A9")
    async with packing.node("before") as node:
        before = await questions(node, packing.name)
    packing.pack()
    if deleted:
        packing.delete_originals()
    async with packing.node("after") as node:
        assert not differences(await questions(node, packing.name), before)
        asked = node.node.metrics.origin_requests
        then = {name: asked.labels(name)._value.get() for name in ("ListObjectsV2", "HeadObject")}
        assert not differences(await questions(node, packing.name), before)
        for name, count in then.items():
            assert asked.labels(name)._value.get() == count, f"{name} for what is known"


async def test_a_node_notices_a_pack_that_is_made_while_it_serves(
    packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The packer waits longer for nodes to notice than they need; here neither waits.
    monkeypatch.setattr(known, "_SETTLED_SECONDS", 0.0)
    fill(packing)
    async with packing.node() as node:
        before = await everything(node, packing.name)
        packing.pack()
        packing.delete_originals()
        s3 = node.client()
        for key in before:
            node.node.service._versions.forget(node.node.service.bucket(packing.name).ref(key))
        for key, seen in before.items():
            got = await call(s3.get_object, Bucket=packing.name, Key=key)
            assert Digest(await call(got["Body"].read)) == seen["body"]
        s3.close()


async def test_writes_win_over_the_pack_and_over_a_restart(packing: Packing) -> None:
    fill(packing)
    packing.pack()
    packing.delete_originals()
    async with packing.node() as node:
        s3 = node.client()
        expected = await everything(node, packing.name)
        name = packing.name
        await call(s3.put_object, Bucket=name, Key="p/0/000.bin", Body=b"new", ContentType="a/b")
        await call(s3.delete_object, Bucket=name, Key="p/0/001.bin")
        await call(s3.put_object, Bucket=name, Key="p/added", Body=b"added")
        await call(
            s3.delete_objects,
            Bucket=name,
            Delete={"Objects": [{"Key": "p/0/002.bin"}, {"Key": "p/0/003.bin"}]},
        )
        source = {"Bucket": name, "Key": "p/1/010.bin"}
        await call(s3.copy_object, Bucket=name, Key="p/copied", CopySource=source)
        await call(s3.copy_object, Bucket=name, Key="p/1/011.bin", CopySource=source)
        for key in ("p/0/001.bin", "p/0/002.bin", "p/0/003.bin"):
            del expected[key]
            with pytest.raises(s3.exceptions.NoSuchKey):
                await call(s3.get_object, Bucket=name, Key=key)
        seen = await everything(node, name)
        s3.close()
    bodies = {key: found["body"] for key, found in expected.items()}
    bodies |= {
        "p/0/000.bin": b"new",
        "p/added": b"added",
        "p/copied": bodies["p/1/010.bin"],
        "p/1/011.bin": bodies["p/1/010.bin"],
    }
    assert {key: found["body"] for key, found in seen.items()} == bodies
    assert seen["p/0/000.bin"]["headers"]["content-type"] == "a/b"
    assert seen["p/1/012.bin"] == expected["p/1/012.bin"]
    async with packing.node("other") as node:
        assert await everything(node, name) == seen
