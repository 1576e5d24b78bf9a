"""What others do to the folders between two steps of ours leads nowhere and loses nothing."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.errors import AccessDenied, NoSuchBucket, NoSuchKey, TierUnavailable
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin, objects, recovery
from gateway.tiers.origin_directory.folders import Folder, exchange
from tests.tiers.origin_contract import ANY, copy, listed, page, put, read_all


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "nas" / "data"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
async def origin(bucket: Path) -> AsyncIterator[DirectoryOrigin]:
    origin = DirectoryOrigin("nas", bucket.parent, Metrics())
    await origin.start()
    yield origin
    await origin.close()


def ref(key: str) -> ObjectRef:
    return ObjectRef("nas", "data", key)


def first_before_swap(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Lets others act between the look at a file and the exchange that makes it a folder."""
    acts = [act]

    def swap(one: Folder, name: str, other: Folder, other_name: str) -> bool:
        if acts:
            acts.pop()()
        return exchange(one, name, other, other_name)

    monkeypatch.setattr(objects, "exchange", swap)


async def test_a_folder_that_others_make_of_a_file_meanwhile_stays(
    origin: DirectoryOrigin, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(origin, ref("a"), b"file")

    def act() -> None:
        (bucket / "a").unlink()
        (bucket / "a").mkdir()
        (bucket / "a" / "theirs").write_bytes(b"kept")

    first_before_swap(monkeypatch, act)
    await put(origin, ref("a/b"), b"ours")
    assert await listed(origin, "data") == ["a/b", "a/theirs"]
    assert await read_all(origin, ref("a/theirs")) == b"kept"
    assert list((bucket / ".feedrack~state" / "tmp").iterdir()) == []


async def test_a_file_that_others_put_meanwhile_is_the_object(
    origin: DirectoryOrigin, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(origin, ref("a"), b"file")

    def act() -> None:
        (bucket / "new").write_bytes(b"theirs")
        (bucket / "new").rename(bucket / "a")

    first_before_swap(monkeypatch, act)
    await put(origin, ref("a/b"), b"ours")
    assert await listed(origin, "data") == ["a", "a/b"]
    assert await read_all(origin, ref("a")) == b"theirs"
    assert list((bucket / ".feedrack~state" / "tmp").iterdir()) == []


async def test_a_folder_that_keeps_becoming_a_link_leads_nowhere(
    origin: DirectoryOrigin, bucket: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (bucket / "real").mkdir()
    (bucket / "real" / "secret").write_bytes(b"inside")
    (bucket / "link").symlink_to(outside)
    done = False

    def flip() -> int:
        flips = 0
        with Folder.at(bucket) as folder:
            while not done:
                # `real` is a folder and a link to the outside in turn, with no gap between.
                assert exchange(folder, "real", folder, "link")
                flips += 1
        return flips

    flipping = asyncio.get_running_loop().run_in_executor(None, flip)
    seen: set[bytes] = set()
    try:
        for number in range(300):
            try:
                seen.add(await read_all(origin, ref("real/secret")))
                await put(origin, ref(f"real/{number}"), b"ours")
                await copy(origin, ref("real/secret"), ref(f"real/copy/{number}"))
                await origin.delete(ref(f"real/{number}"), ANY)
                await page(origin, "data", prefix="real/")
            except (NoSuchKey, AccessDenied, TierUnavailable):
                # What a link hides is not there, or may not be written to.
                continue
        await origin.delete_many("data", [("real/secret", None), ("link/secret", None)])
    finally:
        done = True
    assert await flipping > 0
    assert seen == {b"inside"}
    assert sorted(path.name for path in outside.rglob("*")) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


async def test_a_bucket_that_becomes_a_link_is_no_bucket(
    origin: DirectoryOrigin, bucket: Path, tmp_path: Path
) -> None:
    await put(origin, ref("a"), b"x")
    bucket.rename(tmp_path / "moved")
    bucket.symlink_to(tmp_path / "moved")
    with pytest.raises(NoSuchBucket):
        await read_all(origin, ref("a"))
    with pytest.raises(NoSuchBucket):
        await put(origin, ref("b"), b"x")
    assert await origin.list_buckets() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
async def test_a_bucket_that_cannot_be_mended_is_served(
    origin: DirectoryOrigin, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await put(origin, ref("a"), b"x")

    def refuse(_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(recovery, "finish_moving", refuse)
    await origin.start()
    assert await read_all(origin, ref("a")) == b"x"


async def test_a_nas_that_does_not_answer_is_not_started_on(
    origin: DirectoryOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(recovery, "finish_moving", hang_up)
    with pytest.raises(TierUnavailable):
        await origin.start()
