"""Killed at any instant, a directory origin starts again with the old object or the new, whole, and
nothing half-made. SEED=… repeats a run's choices."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from hashlib import blake2b
from pathlib import Path

import pytest

from gateway.errors import NoSuchKey
from gateway.model.body import BytesBody
from gateway.model.objects import CompletedPart, ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import ANY, PART_BYTES, copy, listed, md5, put, read_all

KEYS = ("a", "a/b", "a/b/c", "d", "d/e")
MULTIPART = "multipart"
META = {"x-amz-meta-a": "1", "content-type": "text/x-demo"}


def ref(key: str) -> ObjectRef:
    return ObjectRef("nas", "data", key)


def content(key: str, number: int) -> bytes:
    """What write `number` of a key stores; the number and the key can be told from it."""
    return f"{number}:{key}\n".encode() * (1 + number % 3 * 20_000)


def parse(key: str, data: bytes) -> int:
    """The number of the write that stored `data`, which must be whole."""
    number = int(data.split(b":", 1)[0])
    assert data == content(key, number)
    return number


async def work(root: Path, able: bool, first: int) -> None:
    """Writes, deletes and completes until killed, and tells on standard output what it is about
    to do and, once answered, that it is done."""
    origin = DirectoryOrigin("nas", root, Metrics(), attributes=able, exchanges=able)
    await origin.start()

    def tell(*words: object) -> None:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    async def churn(key: str) -> None:
        for number in range(first, first + 1_000_000):
            if number % 7 == 6:
                # A copy of itself with other metadata: the same bytes, written anew.
                with contextlib.suppress(NoSuchKey):
                    await copy(origin, ref(key), ref(key), headers=META | {"x-amz-meta-copy": "1"})
            elif number % 4 == 3:
                tell("begin", key, "-")
                await origin.delete(ref(key), ANY)
                tell("done", key, "-")
            else:
                tell("begin", key, number)
                await put(origin, ref(key), content(key, number), META)
                tell("done", key, number)

    async def complete() -> None:
        for number in range(first, first + 1_000_000):
            target = ref(MULTIPART)
            data = (b"%d:" % number).ljust(16, b" ") * (PART_BYTES // 16)
            upload = await origin.create_upload(
                target, {}, checksum_algorithm=None, checksum_type=None
            )
            parts = [
                CompletedPart(
                    number=part,
                    etag=(await origin.put_part(target, upload, part, BytesBody(block), {})).etag,
                )
                for part, block in ((1, data), (2, b"end"))
            ]
            tell("begin", MULTIPART, number)
            await origin.complete_upload(
                target, upload, parts, ANY, checksums={}, checksum_type=None, headers={}
            )
            tell("done", MULTIPART, number)

    await asyncio.gather(complete(), *map(churn, KEYS))


def run_and_kill(root: Path, able: bool, first: int, lines: int) -> dict[str, set[str]]:
    """Lets `work` tell that many lines, kills it, and says what each key may hold now."""
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from tests.tiers.test_origin_directory_crash import work\n"
        f"asyncio.run(work(Path(sys.argv[1]), {able}, {first}))"
    )
    possible: dict[str, set[str]] = {}
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        for _ in range(lines):
            note(possible, process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # What it had told before the signal came to it.
        for line in process.stdout:
            note(possible, line)
    return possible


def note(possible: dict[str, set[str]], line: str) -> None:
    word, key, value = line.split()
    if word == "begin":
        possible.setdefault(key, {"unknown"}).add(value)
    else:
        possible[key] = {value}


@pytest.mark.parametrize("able", [True, False])
async def test_old_or_new_is_there_after_every_kill(tmp_path: Path, able: bool) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    sys.stdout.write(f"SEED={seed}\n")
    chance = random.Random(seed)
    (tmp_path / "data").mkdir()
    held: dict[str, str] = dict.fromkeys((*KEYS, MULTIPART), "-")
    for turn in range(4):
        possible = run_and_kill(tmp_path, able, turn * 1_000_000 + 1, chance.randrange(5, 200))
        origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=able, exchanges=able)
        await origin.start()
        for key in held:
            may = {held[key] if value == "unknown" else value for value in possible.get(key, ())}
            held[key] = await holds(origin, key)
            assert held[key] in (may or {held[key]}), f"seed {seed}, turn {turn}, key {key}"
        there = sorted((key for key in held if held[key] != "-"), key=str.encode)
        assert await listed(origin, "data") == there
        assert unfinished(tmp_path) == []
        await origin.close()


async def holds(origin: DirectoryOrigin, key: str) -> str:
    """The number of the write whose object is there, "-" where there is none."""
    try:
        info = await origin.head(ref(key))
    except NoSuchKey:
        return "-"
    data = await read_all(origin, ref(key))
    if key == MULTIPART:
        assert len(data) == PART_BYTES + 3
        assert len({data[i : i + 16] for i in range(0, PART_BYTES, 16)}) == 1
        assert info.etag.endswith("-2")
        return str(int(data.split(b":", 1)[0]))
    number = parse(key, data)
    assert info.etag == md5(data)
    assert META.items() <= info.headers.items()
    return str(number)


def unfinished(root: Path) -> list[Path]:
    """Drafts, relocations and half-written records that were left."""
    found: list[Path] = []
    for state in (root / ".feedrack~state", root / "data" / ".feedrack~state"):
        for folder in ("tmp", "moving"):
            with contextlib.suppress(FileNotFoundError):
                found += (state / folder).iterdir()
        found += [
            path for path in state.glob("records/*/*") if len(path.name.split(".")) != len("ism")
        ]
    return found


def die_at(root: Path, where: str, last: str) -> None:
    """Lets another process, on a file system without attributes, die where it calls `where`."""
    script = f"""
import asyncio, os, sys
from gateway.tiers.origin_directory import commit, folders, uploads
from tests.tiers.test_origin_directory_crash import *
async def main():
    origin = DirectoryOrigin("nas", Path(sys.argv[1]), Metrics(), attributes=False)
    await origin.start()
    upload = await origin.create_upload(ref("u"), {{}}, checksum_algorithm=None, checksum_type=None)
    await origin.put_part(ref("u"), upload, 1, BytesBody(b"part"), {{}})
    {where} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    await {last}
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert done.returncode == -signal.SIGKILL


async def test_an_upload_whose_end_was_cut_is_gone_with_its_parts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    die_at(tmp_path, "folders.Folder.remove_tree", 'origin.abort_upload(ref("u"), upload)')
    assert len(unfinished(tmp_path)) == 1
    origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=False)
    await origin.start()
    assert unfinished(tmp_path) == []
    uploads = tmp_path / "data" / ".feedrack~state" / "uploads"
    assert list(uploads.iterdir()) == []
    await origin.close()


async def test_the_record_of_what_never_got_its_place_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    die_at(tmp_path, "commit._put_there", 'put(origin, ref("a"), b"x")')
    records = tmp_path / "data" / ".feedrack~state" / "records"
    assert len(list(records.glob("*/*"))) == 1
    origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=False)
    await origin.start()
    assert unfinished(tmp_path) == []
    assert list(records.glob("*/*")) == []
    assert await listed(origin, "data") == []
    await origin.close()


async def test_a_record_cut_while_it_was_written_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    die_at(tmp_path, "folders.Folder.rename", 'put(origin, ref("a"), b"x")')
    assert len(unfinished(tmp_path)) == 2
    origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=False)
    await origin.start()
    assert unfinished(tmp_path) == []
    await origin.close()


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[DirectoryOrigin]:
    (tmp_path / "data").mkdir()
    origin = DirectoryOrigin("nas", tmp_path, Metrics(), exchanges=False)
    await origin.start()
    yield origin
    await origin.close()


def cut_relocation(root: Path) -> None:
    """Lets another process die between the two renames, which a kill seldom meets: `x/a` is
    stored, and nearly a folder."""
    script = """
import asyncio, os, sys
from gateway.tiers.origin_directory import objects
from tests.tiers.test_origin_directory_crash import *
objects._land = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
async def main():
    origin = DirectoryOrigin("nas", Path(sys.argv[1]), Metrics(), exchanges=False)
    await origin.start()
    await put(origin, ref("x/a"), b"kept", {"x-amz-meta-a": "1"})
    await put(origin, ref("x/a/b"), b"new")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (root / "data" / "x" / "a").exists()


async def test_a_relocation_cut_in_the_middle_is_found_and_ended(
    origin: DirectoryOrigin, tmp_path: Path
) -> None:
    async def check() -> None:
        assert await read_all(origin, ref("x/a")) == b"kept"
        info = await origin.head(ref("x/a"))
        assert (info.etag, info.headers["x-amz-meta-a"]) == (md5(b"kept"), "1")

    cut_relocation(tmp_path)
    await check()
    await origin.start()
    await check()
    assert (tmp_path / "data" / "x" / "a").is_dir()
    assert unfinished(tmp_path) == []
    assert await listed(origin, "data") == ["x/a"]
    await put(origin, ref("x/a/b"), b"new")
    assert await listed(origin, "data") == ["x/a", "x/a/b"]
    await check()


async def test_what_a_cut_relocation_left_can_be_deleted(
    origin: DirectoryOrigin, tmp_path: Path
) -> None:
    cut_relocation(tmp_path)
    await origin.delete(ref("x/a"), ANY)
    for _ in range(2):
        with pytest.raises(NoSuchKey):
            await origin.head(ref("x/a"))
        await origin.start()


async def test_what_a_cut_relocation_left_can_be_replaced(
    origin: DirectoryOrigin, tmp_path: Path
) -> None:
    cut_relocation(tmp_path)
    await put(origin, ref("x/a"), b"newer")
    await origin.start()
    assert await read_all(origin, ref("x/a")) == b"newer"
    await origin.delete(ref("x/a"), ANY)
    await origin.start()
    with pytest.raises(NoSuchKey):
        await origin.head(ref("x/a"))


async def test_notes_of_others_lead_nowhere(origin: DirectoryOrigin, tmp_path: Path) -> None:
    moving = tmp_path / "data" / ".feedrack~state" / "moving"
    moving.mkdir(parents=True)
    digest = blake2b(b"../../outside", digest_size=16).hexdigest()
    (moving / f"{digest}.json").write_text('["..", "..", "outside"]')
    (moving / digest).mkdir()
    (moving / digest / ".feedrack~o").write_bytes(b"x")
    (moving / "nonsense.json").write_bytes(b"\xff")
    await origin.start()
    assert not (tmp_path.parent / "outside").exists()
    assert await listed(origin, "data") == []
