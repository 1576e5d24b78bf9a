"""A NAS that is full, away, read-only or slow: clear errors, nothing half-written, nothing lost."""

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.errors import (
    AccessDenied,
    EntityTooLarge,
    FeedrackError,
    KeyTooLongError,
    NoSuchBucket,
    NoSuchKey,
    ServiceUnavailable,
    TierUnavailable,
)
from gateway.model.body import BytesBody
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.origin_directory.errors import translate
from gateway.tiers.origin_directory.scratch import draft_name
from tests.tiers.origin_contract import ANY, listed, page, put, read_all

REF = ObjectRef("nas", "data", "some/key")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "nas"
    folder.mkdir()
    return folder


@pytest.fixture
async def origin(root: Path) -> AsyncIterator[DirectoryOrigin]:
    origin = DirectoryOrigin("nas", root, Metrics())
    await origin.start()
    await origin.create_bucket("data")
    yield origin
    await origin.close()


def drafts(root: Path) -> list[Path]:
    """What lies unfinished in the bucket."""
    return list((root / "data" / ".feedrack~state" / "tmp").glob("*"))


class StallingBody(BytesBody):
    """A body that hands out what it has and then nothing, until cancelled."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.stalled = asyncio.Event()

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await super().read(limit_bytes)
        if not block:
            self.stalled.set()
            await asyncio.Event().wait()
        return block


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ServiceUnavailable),
        (errno.EDQUOT, ServiceUnavailable),
        (errno.EFBIG, EntityTooLarge),
        (errno.EACCES, AccessDenied),
        (errno.EPERM, AccessDenied),
        (errno.EROFS, AccessDenied),
        (errno.EXDEV, AccessDenied),
        (errno.ENAMETOOLONG, KeyTooLongError),
        (errno.EIO, TierUnavailable),
        (errno.ESTALE, TierUnavailable),
        (errno.ENOENT, TierUnavailable),
        (errno.ENOTCONN, TierUnavailable),
        (errno.EMFILE, TierUnavailable),
    ],
)
def test_the_systems_errors_are_told_as_s3s(number: int, kind: type[FeedrackError]) -> None:
    told = translate(OSError(number, os.strerror(number)), "nas")
    assert type(told) is kind
    assert "nas" in str(told)


async def test_a_cancelled_write_leaves_nothing(origin: DirectoryOrigin, root: Path) -> None:
    body = StallingBody(b"x" * 3 * 1024**2)
    task = asyncio.create_task(origin.put(REF, body, {}, ANY))
    await body.stalled.wait()
    assert len(drafts(root)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert drafts(root) == []
    assert await listed(origin, "data") == []


async def test_an_unmounted_root_is_unavailable_and_not_empty(
    origin: DirectoryOrigin, root: Path, tmp_path: Path
) -> None:
    await put(origin, REF, b"x")
    root.rename(tmp_path / "away")
    await refuses_everything(origin)
    # The mount point that is left: a folder, but not the one of the start.
    root.mkdir()
    await refuses_everything(origin)
    assert list(root.iterdir()) == []
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert await read_all(origin, REF) == b"x"


async def test_the_same_nas_mounted_again_is_the_same(
    origin: DirectoryOrigin, root: Path, tmp_path: Path
) -> None:
    await put(origin, REF, b"x")
    root.rename(tmp_path / "away")
    # Another inode with the same marker in it.
    shutil.copytree(tmp_path / "away", root)
    assert await read_all(origin, REF) == b"x"


async def refuses_everything(origin: DirectoryOrigin) -> None:
    """No answer may take the absence of the NAS for the absence of what is on it."""
    for work in (
        origin.head(REF),
        origin.open(REF),
        origin.open(REF, if_match="x"),
        origin.delete(REF, ANY),
        origin.put(REF, BytesBody(b"y"), {}, ANY),
        origin.list_buckets(),
        origin.head_bucket("data"),
        origin.create_bucket("other"),
        page(origin, "data"),
    ):
        with pytest.raises(TierUnavailable):
            await work


async def test_no_root_is_no_start(tmp_path: Path) -> None:
    origin = DirectoryOrigin("nas", tmp_path / "missing", Metrics())
    with pytest.raises(TierUnavailable):
        await origin.start()
    await origin.close()


async def test_a_bucket_deleted_under_an_upload_is_no_such_bucket(
    origin: DirectoryOrigin, root: Path
) -> None:
    body = StallingBody(b"x" * 3 * 1024**2)
    task = asyncio.create_task(origin.put(REF, body, {}, ANY))
    await body.stalled.wait()
    await origin.delete_bucket("data")
    assert not (root / "data").exists()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(NoSuchBucket):
        await put(origin, REF, b"x")


async def test_the_drafts_of_the_dead_are_cleaned_and_no_others(
    origin: DirectoryOrigin, root: Path
) -> None:
    await put(origin, REF, b"x")
    folder = root / "data" / ".feedrack~state" / "tmp"
    dead = subprocess.run(
        [sys.executable, "-c", "from tests.tiers.test_origin_directory_faults import draft_name\n"
         "print(draft_name(), end='')"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    (folder / dead.stdout).write_bytes(b"half")
    (folder / draft_name()).write_bytes(b"of this process")
    (folder / "another-host-1.77.88.0").write_bytes(b"young")
    (folder / "another-host-1.77.88.1").write_bytes(b"old")
    os.utime(folder / "another-host-1.77.88.1", (0, 0))
    assert len(drafts(root)) == 4
    await origin.start()
    assert {path.read_bytes() for path in drafts(root)} == {b"of this process", b"young"}


async def test_a_body_too_large_for_the_file_system_is_refused(root: Path) -> None:
    (root / "data").mkdir()
    script = """
import asyncio, resource, sys
from pathlib import Path
from gateway.errors import EntityTooLarge
from tests.tiers.test_origin_directory_faults import *
async def main():
    origin = DirectoryOrigin("nas", Path(sys.argv[1]), Metrics())
    await origin.start()
    await put(origin, REF, b"kept")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024**2, 1024**2))
    try:
        await put(origin, REF, b"x" * 5 * 1024**2)
    except EntityTooLarge:
        print(await read_all(origin, REF))
    await origin.close()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("b'kept'\n", "")
    assert drafts(root) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_is_told_and_harms_nothing(small_disk: Path) -> None:
    origin = DirectoryOrigin("nas", small_disk, Metrics())
    await origin.start()
    await origin.create_bucket("data")
    await put(origin, REF, b"kept")
    with pytest.raises(ServiceUnavailable, match="no room left"):
        await put(origin, REF, b"x" * 5 * 1024**2)
    assert await read_all(origin, REF) == b"kept"
    assert drafts(small_disk) == []
    await put(origin, REF, b"y" * 1024**2)
    await origin.close()


async def test_a_read_only_nas_is_read(small_disk: Path) -> None:
    (small_disk / "data").mkdir()
    (small_disk / "data" / "a").write_bytes(b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    origin = DirectoryOrigin("nas", small_disk, Metrics())
    await origin.start()
    ref = ObjectRef("nas", "data", "a")
    assert await read_all(origin, ref) == b"x"
    assert await listed(origin, "data") == ["a"]
    for work in (
        origin.put(REF, BytesBody(b"y"), {}, ANY),
        origin.delete(ref, ANY),
        origin.create_bucket("other"),
        origin.put_tags(ref, [("a", "b")]),
        origin.create_upload(ref, {}, checksum_algorithm=None, checksum_type=None),
    ):
        with pytest.raises(AccessDenied, match="read-only"):
            await work
    assert (await origin.delete_many("data", [("a", None)]))[0].error_code == "AccessDenied"
    await origin.close()


async def test_a_bucket_whose_mount_is_gone_is_unavailable(
    origin: DirectoryOrigin, root: Path, small_disk: Path
) -> None:
    (root / "mounted").mkdir()
    subprocess.run(["mount", "--bind", str(small_disk), str(root / "mounted")], check=True)
    ref = ObjectRef("nas", "mounted", "a")
    try:
        await put(origin, ref, b"x")
        assert await read_all(origin, ref) == b"x"
    finally:
        subprocess.run(["umount", "--lazy", str(root / "mounted")], check=True)
    with pytest.raises(TierUnavailable):
        await origin.head(ref)
    with pytest.raises(TierUnavailable):
        await put(origin, ref, b"y")
    (root / "mounted").rmdir()
    with pytest.raises(TierUnavailable):
        await page(origin, "mounted")


async def test_another_file_system_inside_a_bucket_is_read_only(
    origin: DirectoryOrigin, root: Path, small_disk: Path
) -> None:
    (small_disk / "a").write_bytes(b"x")
    (root / "data" / "sub").mkdir()
    subprocess.run(["mount", "--bind", str(small_disk), str(root / "data" / "sub")], check=True)
    try:
        assert await read_all(origin, ObjectRef("nas", "data", "sub/a")) == b"x"
        with pytest.raises(AccessDenied, match="mounted"):
            await put(origin, ObjectRef("nas", "data", "sub/b"), b"y")
        assert await listed(origin, "data") == ["sub/a"]
        assert drafts(root) == []
    finally:
        subprocess.run(["umount", "--lazy", str(root / "data" / "sub")], check=True)


async def test_opening_and_going_away_leaves_no_file_open(
    origin: DirectoryOrigin, root: Path
) -> None:
    await put(origin, REF, b"x" * 1024**2)
    for _ in range(20):
        task = asyncio.create_task(origin.open(REF))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()
    with pytest.raises(NoSuchKey):
        await origin.head(ObjectRef("nas", "data", "other"))
    await origin.close()
    assert open_below(root) == []


def open_below(root: Path) -> list[str]:
    """What this process has open in a folder."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            place = str(entry.readlink())
            if place.startswith(str(root)):
                found.append(place)
    return found


async def test_no_operation_leaves_a_file_open(origin: DirectoryOrigin, root: Path) -> None:
    await put(origin, REF, b"x" * 1024**2)
    await read_all(origin, REF)
    await put(origin, ObjectRef("nas", "data", "some/key/below"), b"y")
    await origin.put_tags(REF, [("a", "b")])
    await listed(origin, "data", delimiter="/")
    upload = await origin.create_upload(REF, {}, checksum_algorithm=None, checksum_type=None)
    await origin.put_part(REF, upload, 1, BytesBody(b"z"), {})
    await origin.list_parts(REF, upload, after_number=0, limit=10)
    await origin.abort_upload(REF, upload)
    await origin.delete(REF, ANY)
    with pytest.raises(NoSuchKey):
        await origin.head(REF)
    assert open_below(root) == []
