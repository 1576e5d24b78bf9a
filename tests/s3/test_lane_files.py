"""Answers sent from files: the right bytes, or an answer that is seen to be broken, whatever
happens to the files meanwhile."""

import asyncio
import os
import random
import secrets
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from tests.s3.running import Wire, call
from tests.s3.stocked import CHUNK_BYTES, Stocked, expect, stocked
from tests.s3.twins import read_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

HUGE_BYTES = 12 * CHUNK_BYTES + 777
HUGE = random.Random(9).randbytes(HUGE_BYTES)
PACKED = random.Random(10).randbytes(400_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stocked]:
    """A node that holds HUGE in chunks and PACKED in a shard."""
    cache = {"small_object_limit": "512KiB", "capacity": "256MiB"}
    async with stocked(tmp_path_factory.mktemp("node"), cache=cache) as started:
        await _hold(started, "huge", HUGE)
        await _hold(started, "packed", PACKED)
        yield started


async def _hold(node: Stocked, key: str, body: bytes) -> None:
    """Puts an object, and has it on the disk and verified."""
    s3 = node.running.client()
    await call(s3.put_object, Bucket="open", Key=key, Body=body)
    holding = node.node.parts.disk._holding
    assert holding is not None
    await holding.small.log.flush()
    got = await call(s3.get_object, Bucket="open", Key=key)
    assert await asyncio.to_thread(got["Body"].read) == body
    s3.close()


async def _hold_in_chunks(node: Stocked, key: str, body: bytes) -> list[Path]:
    """As `_hold`; the files that it lies in."""
    folder = node.node.config.cache.path / "chunks"
    others = {path.stem for path in folder.rglob("*.*")}
    await _hold(node, key, body)
    return [path for path in folder.rglob("*.*") if path.stem not in others]


@pytest.fixture
def from_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each sendfile(2) took."""
    taken: list[int] = []
    real = os.sendfile

    def counted(out: int, file: int, offset: int, size_bytes: int) -> int:
        sent = real(out, file, offset, size_bytes)
        taken.append(sent)
        return sent

    monkeypatch.setattr(os, "sendfile", counted)
    return taken


@pytest.mark.parametrize(("key", "body"), [("huge", HUGE), ("packed", PACKED)])
async def test_any_range_is_sent_from_where_it_lies(
    node: Stocked, from_files: list[int], key: str, body: bytes
) -> None:
    seed = secrets.randbits(32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    wire = await node.connect()
    sent_bytes = 0
    for _ in range(60):
        size_bytes = chance.choice([1, 4096, 65_535, 65_536, 131_072, 300_000, 3_000_000])
        start = chance.choice([0, 1, 4095, 65_536, CHUNK_BYTES - 1, chance.randrange(len(body))])
        start %= len(body)
        stop = min(start + size_bytes, len(body))
        head = f"GET /open/{key} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
        await wire.send(head.encode())
        answer = await read_answer(wire.reader, "GET")
        assert answer.body == body[start:stop], (start, stop)
        sent_bytes += stop - start
    assert sum(from_files) > sent_bytes / 2


async def test_over_tls_the_same_bytes_are_read(tmp_path: Path, from_files: list[int]) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with stocked(tmp_path, s3=files, trusted=tmp_path / "ca.pem") as node:
        asked = [node.get("large"), node.get("block"), node.get("small"), node.head("large")] * 3
        asked += [node.missing(), node.part("large", 5, 1_500_000), node.get("empty")]
        wire = Wire(*await asyncio.open_connection("127.0.0.1", node.running.port, ssl=context))
        answered = node.watched.answered
        wire.writer.write(b"".join(request.data for request in asked))
        await expect(wire, asked)
        assert node.watched.answered - answered == len(asked) - 1
        assert from_files == []
        # A client that takes no notice does not hold it up.
        async with asyncio.timeout(15):
            await node.node.s3.drain(60)
        await wire.close()


# What happens to files


def _unlink(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def _truncate(path: Path) -> None:
    # To nothing: the kernel fills the rest of a page with zeros, also where it is on its way.
    os.truncate(path, 0)


def _corrupt(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(500_000)
        file.write(bytes(4096))


def _leave_memory(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("harm", [_unlink, _replace, _truncate, _corrupt, _leave_memory])
async def test_what_happens_to_the_files_meanwhile_never_shows(
    node: Stocked, harm: Callable[[Path], None]
) -> None:
    body = random.Random(harm.__name__).randbytes(HUGE_BYTES)
    chunks = await _hold_in_chunks(node, harm.__name__, body)
    assert len(chunks) == 13
    wire = await node.connect(receive_bytes=4096)
    await wire.send(_get(harm.__name__))
    begun = await wire.reader.readexactly(20_000)
    for path in chunks:
        # What changes in place while it is on its way nobody could see.
        if harm is not _corrupt or int(path.suffix[1:]) >= 8:
            harm(path)
    rest = await _rest(wire)
    received = (begun + rest).partition(b"\r\n\r\n")[2]
    assert body.startswith(received)
    assert len(received) == HUGE_BYTES or harm is _truncate
    await wire.close()
    wire = await node.connect()
    await wire.send(_get(harm.__name__))
    assert (await read_answer(wire.reader, "GET")).body == body
    await wire.close()


async def test_an_object_replaced_meanwhile_is_sent_as_it_was_or_not_to_its_end(
    node: Stocked,
) -> None:
    wire = await node.connect(receive_bytes=4096)
    await wire.send(_get("huge"))
    begun = await wire.reader.readexactly(20_000)
    s3 = node.running.client()
    other = bytes(len(HUGE))
    await call(s3.put_object, Bucket="open", Key="huge", Body=other)
    s3.close()
    received = (begun + await _rest(wire)).partition(b"\r\n\r\n")[2]
    assert HUGE.startswith(received)
    wire = await node.connect()
    await wire.send(_get("huge"))
    assert (await read_answer(wire.reader, "GET")).body == other


async def test_a_file_cut_off_while_it_is_sent_ends_its_answers_and_nothing_else(
    node: Stocked,
) -> None:
    body = random.Random(12).randbytes(CHUNK_BYTES)
    chunks = await _hold_in_chunks(node, "cut", body)
    others = [await node.connect() for _ in range(3)]
    wires = [await node.connect(receive_bytes=4096) for _ in range(3)]
    for wire in wires:
        await wire.send(_get("cut") * 30)
        await wire.reader.readexactly(5000)
    for path in chunks:
        _truncate(path)
    for wire in wires:
        assert len(await _rest(wire)) < 30 * len(body)
    for other in others:
        await other.send(_get("cut") + node.get("small").data)
        assert (await read_answer(other.reader, "GET")).body == body
        await expect(other, [node.get("small")])


def _get(key: str) -> bytes:
    return f"GET /open/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def _rest(wire: Wire) -> bytes:
    """What comes until nothing has come for a while, or the end."""
    received = bytearray()
    try:
        while block := await asyncio.wait_for(wire.reader.read(65_536), 1):
            received += block
    except (ConnectionError, TimeoutError):
        pass
    return bytes(received)
