"""What others put on the NAS is served, and what they must not reach through us is not."""

import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import (
    AccessDenied,
    BucketNotEmpty,
    NoSuchBucket,
    NoSuchKey,
    TierUnavailable,
    VersionChanged,
)
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import ANY, copy, listed, md5, page, put, read_all

LONG_AGO_NS = 1_600_000_000 * 10**9
LARGE = b"x" * 3 * 1024**2


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "nas" / "data"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(params=["full", "plain"])
async def origin(bucket: Path, request: pytest.FixtureRequest) -> AsyncIterator[DirectoryOrigin]:
    able = request.param == "full"
    origin = DirectoryOrigin("nas", bucket.parent, Metrics(), attributes=able, exchanges=able)
    await origin.start()
    yield origin
    await origin.close()


def ref(key: str) -> ObjectRef:
    return ObjectRef("nas", "data", key)


def foreign(path: Path, data: bytes, mtime_ns: int = LONG_AGO_NS) -> None:
    """A file as others write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(mtime_ns, mtime_ns))


async def test_a_file_of_others_is_an_object(origin: DirectoryOrigin, bucket: Path) -> None:
    foreign(bucket / "pictures" / "cat.jpg", b"meow")
    info = await origin.head(ref("pictures/cat.jpg"))
    assert info.headers == {"content-type": "image/jpeg"}
    assert info.size_bytes == 4
    assert info.last_modified_ms == LONG_AGO_NS // 10**6
    assert info.checksums == {}
    assert info.cacheable
    assert await read_all(origin, ref("pictures/cat.jpg")) == b"meow"
    entry = (await page(origin, "data")).objects[0]
    assert (entry.key, entry.etag, entry.size_bytes) == ("pictures/cat.jpg", info.etag, 4)
    assert [entry.name for entry in await origin.list_buckets()] == ["data"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", "text/plain"), ("a.tar.gz", "binary/octet-stream"), ("a", "binary/octet-stream")],
)
async def test_the_type_is_guessed(
    origin: DirectoryOrigin, bucket: Path, name: str, kind: str
) -> None:
    foreign(bucket / name, b"x")
    assert (await origin.head(ref(name))).headers["content-type"] == kind


async def test_an_etag_of_others_looks_like_no_md5_and_no_part_count(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    for number in range(40):
        foreign(bucket / str(number), b"x" * number, LONG_AGO_NS - number * 10**17)
    for entry in (await page(origin, "data")).objects:
        assert re.fullmatch(r"[0-9a-f]{32}(-\d+)?", entry.etag) is None
        assert re.search(r"-\d+$", entry.etag) is None


async def test_a_file_changed_a_moment_ago_is_not_cacheable(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "new", b"x", time.time_ns())
    foreign(bucket / "old", b"x", time.time_ns() - 10 * 10**9)
    assert not (await origin.head(ref("new"))).cacheable
    assert (await origin.head(ref("old"))).cacheable
    await put(origin, ref("ours"), b"x")
    assert (await origin.head(ref("ours"))).cacheable


async def test_an_object_that_others_edit_is_theirs(origin: DirectoryOrigin, bucket: Path) -> None:
    await put(origin, ref("a.txt"), b"ours", {"x-amz-meta-a": "1", "content-type": "text/x"})
    assert (bucket / "a.txt").read_bytes() == b"ours"
    foreign(bucket / "a.txt", b"them")
    info = await origin.head(ref("a.txt"))
    assert info.etag not in (md5(b"ours"), md5(b"them"))
    assert info.headers == {"content-type": "text/plain"}
    assert info.checksums == {}
    assert (await page(origin, "data")).objects[0].etag == info.etag
    before = info.etag
    foreign(bucket / "a.txt", b"them", LONG_AGO_NS + 1)
    assert (await origin.head(ref("a.txt"))).etag != before


async def test_an_object_that_others_replace_is_theirs(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    await put(origin, ref("a"), b"same")
    status = (bucket / "a").stat()
    foreign(bucket / "b", b"same", status.st_mtime_ns)
    (bucket / "b").rename(bucket / "a")
    assert (await origin.head(ref("a"))).etag != md5(b"same")


async def test_a_file_of_others_takes_tags_and_stays_what_it_is(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "a.txt", b"x")
    before = await origin.head(ref("a.txt"))
    await origin.put_tags(ref("a.txt"), [("k", "v")])
    after = await origin.head(ref("a.txt"))
    assert after.etag == before.etag
    assert after.headers == {"content-type": "text/plain", "x-amz-tagging-count": "1"}
    assert await origin.get_tags(ref("a.txt")) == (("k", "v"),)
    await put(origin, ref("a.txt/b"), b"y")
    assert (await origin.head(ref("a.txt"))).etag == before.etag


async def test_a_copy_of_a_file_of_others_is_ours(origin: DirectoryOrigin, bucket: Path) -> None:
    foreign(bucket / "a.txt", b"data")
    assert await copy(origin, ref("a.txt"), ref("b")) == md5(b"data")
    info = await origin.head(ref("b"))
    assert info.headers == {"content-type": "text/plain"}
    assert info.checksums.keys() == {"CRC64NVME"}


async def test_a_read_breaks_when_others_edit_the_file(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "a", LARGE)
    opened = await origin.open(ref("a"))
    blocks = opened.blocks()
    await anext(blocks)
    with (bucket / "a").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(VersionChanged):
        await anext(blocks)
    await opened.close()


async def test_a_read_breaks_when_others_cut_the_file(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "a", LARGE)
    opened = await origin.open(ref("a"))
    blocks = opened.blocks()
    await anext(blocks)
    os.truncate(bucket / "a", 1024**2 + 5)
    with pytest.raises(VersionChanged):
        await anext(blocks)
    await opened.close()


async def test_a_read_ends_whole_when_others_replace_the_file(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "a", LARGE)
    opened = await origin.open(ref("a"))
    blocks = opened.blocks()
    seen = [await anext(blocks)]
    foreign(bucket / "b", b"other")
    (bucket / "b").rename(bucket / "a")
    seen += [block async for block in blocks]
    await opened.close()
    assert b"".join(seen) == LARGE


async def test_links_are_neither_shown_nor_followed(
    origin: DirectoryOrigin, bucket: Path, tmp_path: Path
) -> None:
    foreign(tmp_path / "outside" / "secret", b"secret")
    foreign(bucket / "inside", b"x")
    (bucket / "file").symlink_to(tmp_path / "outside" / "secret")
    (bucket / "folder").symlink_to(tmp_path / "outside")
    (bucket / "near").symlink_to("inside")
    (bucket / "loop").symlink_to("loop")
    (bucket.parent / "other").symlink_to(tmp_path / "outside")
    assert await listed(origin, "data") == ["inside"]
    assert await listed(origin, "data", delimiter="/") == ["inside"]
    for key in ("file", "folder/secret", "near", "loop", "loop/x"):
        with pytest.raises(NoSuchKey):
            await origin.open(ref(key))
        with pytest.raises(NoSuchKey):
            await origin.head(ref(key))
    with pytest.raises(NoSuchBucket):
        await page(origin, "other")
    assert [entry.name for entry in await origin.list_buckets()] == ["data"]


async def test_nothing_is_written_through_links(
    origin: DirectoryOrigin, bucket: Path, tmp_path: Path
) -> None:
    foreign(tmp_path / "outside" / "secret", b"secret")
    (bucket / "file").symlink_to(tmp_path / "outside" / "secret")
    (bucket / "folder").symlink_to(tmp_path / "outside")
    with pytest.raises(AccessDenied):
        await put(origin, ref("folder/secret"), b"x")
    await put(origin, ref("file"), b"x")
    await origin.delete(ref("folder/secret"), ANY)
    assert (tmp_path / "outside" / "secret").read_bytes() == b"secret"
    assert await read_all(origin, ref("file")) == b"x"
    assert not (bucket / "file").is_symlink()


async def test_a_hidden_folder_that_is_a_link_is_not_used(
    origin: DirectoryOrigin, bucket: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (bucket / ".feedrack~state").symlink_to(tmp_path / "outside")
    with pytest.raises(TierUnavailable):
        await put(origin, ref("a"), b"x")
    assert list((tmp_path / "outside").iterdir()) == []


async def test_dots_lead_nowhere(origin: DirectoryOrigin, bucket: Path, tmp_path: Path) -> None:
    foreign(tmp_path / "secret", b"secret")
    for key in ("../secret", "../../secret", "./../../secret", "/etc/passwd", "a/../../../secret"):
        with pytest.raises(NoSuchKey):
            await origin.open(ref(key))
        await put(origin, ref(key), b"ours")
        assert await read_all(origin, ref(key)) == b"ours"
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nas", "secret"]
    for name in ("..", ".", "data/..", "", "../outside", "data\0", ".feedrack~state"):
        with pytest.raises(NoSuchBucket):
            await origin.head_bucket(name)


async def test_what_is_no_object_is_left_out(origin: DirectoryOrigin, bucket: Path) -> None:
    (bucket / "empty" / "folders").mkdir(parents=True)
    os.mkfifo(bucket / "pipe")
    Path(os.fsdecode(os.fsencode(bucket) + b"/\xff\xfe")).write_bytes(b"x")
    foreign(bucket / ".nfs000000000001", b"x")
    foreign(bucket / ".feedrack~qordinary", b"x")
    foreign(bucket / "empty" / ".feedrack~zpiece", b"x")
    foreign(bucket / "a", b"x")
    assert await listed(origin, "data", delimiter="/") == ["a"]
    assert await listed(origin, "data") == ["a"]
    with pytest.raises(NoSuchKey):
        await origin.open(ref("pipe"))
    await origin.delete(ref("a"), ANY)
    with pytest.raises(BucketNotEmpty):
        await origin.delete_bucket("data")
    assert (bucket / "pipe").is_fifo()


async def test_a_bucket_of_empty_folders_is_empty(origin: DirectoryOrigin, bucket: Path) -> None:
    (bucket / "empty" / "folders").mkdir(parents=True)
    await origin.delete_bucket("data")
    assert not bucket.exists()


async def test_deleting_removes_the_folders_it_empties_and_no_others(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    (bucket / "stays").mkdir()
    await put(origin, ref("a/b/c"), b"x")
    await put(origin, ref("a/d"), b"x")
    await origin.delete(ref("a/b/c"), ANY)
    assert not (bucket / "a" / "b").exists()
    assert (bucket / "a" / "d").exists()
    await origin.delete_many("data", [("a/d", None)])
    assert not (bucket / "a").exists()
    assert (bucket / "stays").exists()


async def test_others_may_read_what_is_written(origin: DirectoryOrigin, bucket: Path) -> None:
    await put(origin, ref("a/b"), b"x")
    mask = os.umask(0)
    os.umask(mask)
    assert (bucket / "a" / "b").stat().st_mode & 0o777 == 0o666 & ~mask


async def test_a_record_of_others_making_is_no_record(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    foreign(bucket / "a", b"x")
    before = await origin.head(ref("a"))
    try:
        os.setxattr(bucket / "a", "user.feedrack", b"\xc1 not a record")
    except OSError:
        pytest.skip("no extended attributes here")
    assert await origin.head(ref("a")) == before


async def test_what_lies_too_deep_for_a_key_is_left_out(
    origin: DirectoryOrigin, bucket: Path
) -> None:
    deepest = "/".join("d" * 255 + "f")
    foreign(bucket / deepest, b"x")
    foreign(bucket / deepest.replace("f", "d") / "f", b"x")
    foreign(bucket / ("n" * 250) / ("n" * 250) / ("n" * 250) / ("n" * 250) / ("n" * 250), b"x")
    assert await listed(origin, "data") == [deepest]
    assert await read_all(origin, ref(deepest)) == b"x"
