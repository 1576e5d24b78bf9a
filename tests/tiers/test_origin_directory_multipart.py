"""Uploads in parts: what is checked, what survives, what the whole is said to be."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gateway.errors import (
    BadDigest,
    InvalidArgument,
    InvalidPart,
    InvalidPartNumber,
    InvalidRequest,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
)
from gateway.model.body import BytesBody
from gateway.model.checksums import checksum, composite, full_object
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import ChecksumType, CompletedPart, ObjectRef, PutResult
from gateway.model.ranges import ByteRange
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import ANY, ONLY_NEW, PART_BYTES, listed, put, read_all

REF = ObjectRef("nas", "data", "some/key")
BLOCKS = [b"a" * PART_BYTES, b"b" * PART_BYTES, b"c" * 10]


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[DirectoryOrigin]:
    origin = DirectoryOrigin("nas", tmp_path, Metrics())
    await origin.start()
    await origin.create_bucket("data")
    yield origin
    await origin.close()


async def begin(
    origin: DirectoryOrigin,
    algorithm: str | None = None,
    kind: ChecksumType | None = None,
    ref: ObjectRef = REF,
) -> str:
    return await origin.create_upload(ref, {}, checksum_algorithm=algorithm, checksum_type=kind)


async def upload_all(
    origin: DirectoryOrigin, upload: str, algorithm: str | None = None
) -> list[CompletedPart]:
    """All of BLOCKS, with the checksums a client would send of that algorithm."""
    parts = []
    for number, block in enumerate(BLOCKS, 1):
        sums = {algorithm: checksum(algorithm, block)} if algorithm else {}
        result = await origin.put_part(REF, upload, number, BytesBody(block, checksums=sums), {})
        parts.append(CompletedPart(number=number, etag=result.etag, checksums=sums))
    return parts


async def complete(
    origin: DirectoryOrigin,
    upload: str,
    parts: list[CompletedPart],
    conditions: WriteConditions = ANY,
    checksums: Mapping[str, str] | None = None,
    kind: ChecksumType | None = None,
) -> PutResult:
    return await origin.complete_upload(
        REF, upload, parts, conditions, checksums=checksums or {}, checksum_type=kind, headers={}
    )


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "SHA1", "SHA256"])
async def test_a_composite_checksum_is_made_of_the_parts(
    origin: DirectoryOrigin, algorithm: str
) -> None:
    upload = await begin(origin, algorithm)
    parts = await upload_all(origin, upload, algorithm)
    whole = composite(algorithm, [checksum(algorithm, block) for block in BLOCKS])
    result = await complete(origin, upload, parts, checksums={algorithm: whole})
    assert result.checksums == {algorithm: whole}
    assert result.checksum_type == "COMPOSITE"
    assert result.info == await origin.head(REF)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME"])
async def test_a_full_object_checksum_is_that_of_all_bytes(
    origin: DirectoryOrigin, algorithm: str
) -> None:
    upload = await begin(origin, algorithm, "FULL_OBJECT")
    parts = await upload_all(origin, upload, algorithm)
    whole = checksum(algorithm, b"".join(BLOCKS))
    with pytest.raises(BadDigest):
        await complete(origin, upload, parts, checksums={algorithm: checksum(algorithm, b"other")})
    result = await complete(origin, upload, parts, checksums={algorithm: whole})
    assert result.checksums == {algorithm: whole}
    assert (await origin.head(REF)).checksum_type == "FULL_OBJECT"


async def test_without_an_algorithm_the_default_is_kept(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    result = await complete(origin, upload, await upload_all(origin, upload))
    assert result.checksums == {"CRC64NVME": checksum("CRC64NVME", b"".join(BLOCKS))}


async def test_a_checksum_that_parts_brought_unasked_holds_for_the_whole(
    origin: DirectoryOrigin,
) -> None:
    upload = await begin(origin)
    parts = await upload_all(origin, upload, "CRC32")
    sums = [(checksum("CRC32", block), len(block)) for block in BLOCKS]
    with pytest.raises(BadDigest):
        await complete(origin, upload, parts, checksums={"CRC32": checksum("CRC32", b"other")})
    with pytest.raises(InvalidRequest):
        await complete(origin, upload, parts, checksums={"SHA256": checksum("SHA256", b"other")})
    await complete(origin, upload, parts, checksums={"CRC32": full_object("CRC32", sums)})


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("SHA256", "FULL_OBJECT"), ("SHA1", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("X", None)],
)
async def test_checksums_that_s3_does_not_combine_are_refused(
    origin: DirectoryOrigin, algorithm: str, kind: ChecksumType | None
) -> None:
    with pytest.raises(InvalidRequest):
        await begin(origin, algorithm, kind)


async def test_a_part_with_another_checksum_than_named_is_invalid(
    origin: DirectoryOrigin,
) -> None:
    upload = await begin(origin, "CRC32")
    parts = await upload_all(origin, upload, "CRC32")
    other = {"CRC32": checksum("CRC32", b"other")}
    wrong = CompletedPart(number=3, etag=parts[2].etag, checksums=other)
    with pytest.raises(InvalidPart):
        await complete(origin, upload, [*parts[:2], wrong])
    with pytest.raises(InvalidRequest):
        await complete(origin, upload, parts, kind="FULL_OBJECT")
    with pytest.raises(InvalidRequest):
        await complete(origin, upload, [])
    await complete(origin, upload, parts, kind="COMPOSITE")


async def test_parts_are_found_by_number_in_the_whole(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    await complete(origin, upload, await upload_all(origin, upload))
    start = 0
    for number, block in enumerate(BLOCKS, 1):
        _, span = await origin.part_span(REF, number)
        assert (span.start, span.stop, span.count) == (start, start + len(block), 3)
        assert await read_all(origin, REF, ByteRange(span.start, span.stop)) == block
        start = span.stop
    for number in (0, 4):
        with pytest.raises(InvalidPartNumber):
            await origin.part_span(REF, number)


async def test_a_copy_is_one_part_and_has_an_md5(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    await complete(origin, upload, await upload_all(origin, upload))
    target = ObjectRef("nas", "data", "copy")
    result = await origin.copy(
        REF,
        target,
        headers=None,
        tagging=None,
        source_conditions=Conditions(),
        conditions=ANY,
        checksum_algorithm="SHA256",
    )
    assert "-" not in result.etag
    assert result.checksums == {"SHA256": checksum("SHA256", b"".join(BLOCKS))}
    assert (await origin.part_span(target, 1))[1].count == 1


async def test_completion_minds_its_conditions_and_may_be_tried_again(
    origin: DirectoryOrigin,
) -> None:
    upload = await begin(origin)
    parts = await upload_all(origin, upload)
    with pytest.raises(NoSuchKey):
        await complete(origin, upload, parts, WriteConditions(if_match="x"))
    etag = await put(origin, REF, b"there")
    with pytest.raises(PreconditionFailed):
        await complete(origin, upload, parts, ONLY_NEW)
    assert await read_all(origin, REF) == b"there"
    await complete(origin, upload, parts, WriteConditions(if_match=etag))
    assert await read_all(origin, REF) == b"".join(BLOCKS)


async def test_an_upload_survives_a_restart(origin: DirectoryOrigin, tmp_path: Path) -> None:
    upload = await begin(origin, "CRC32")
    first = await origin.put_part(REF, upload, 1, BytesBody(BLOCKS[0]), {})
    later = DirectoryOrigin("nas", tmp_path, Metrics())
    await later.start()
    found = await later.list_parts(REF, upload, after_number=0, limit=10)
    assert [(part.number, part.etag) for part in found.parts] == [(1, first.etag)]
    assert found.checksum_algorithm == "CRC32"
    assert found.parts[0].checksums == {"CRC32": checksum("CRC32", BLOCKS[0])}
    await complete(later, upload, [CompletedPart(number=1, etag=first.etag)])
    assert await read_all(later, REF) == BLOCKS[0]
    await later.close()


async def test_parts_are_listed_in_pages(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    for number in (1, 5, 10_000):
        await origin.put_part(REF, upload, number, BytesBody(b"x"), {})
    first = await origin.list_parts(REF, upload, after_number=0, limit=2)
    assert [part.number for part in first.parts] == [1, 5]
    assert first.next_number == 5
    last = await origin.list_parts(REF, upload, after_number=5, limit=2)
    assert [part.number for part in last.parts] == [10_000]
    assert last.next_number is None


async def test_uploads_are_listed_in_pages(origin: DirectoryOrigin) -> None:
    keys = ["a/1", "a/2", "b", "b", "b", "c"]
    begun = [(key, await begin(origin, ref=ObjectRef("nas", "data", key))) for key in keys]
    for delimiter, rows in (("", 6), ("/", 5)):
        seen: list[tuple[str, str]] = []
        prefixes: list[str] = []
        marker = ("", "")
        for _ in range(rows):
            page = await origin.list_uploads(
                "data",
                prefix="",
                delimiter=delimiter,
                key_marker=marker[0],
                upload_id_marker=marker[1],
                limit=1,
            )
            seen += [(entry.key, entry.upload_id) for entry in page.uploads]
            prefixes += page.common_prefixes
            marker = (page.next_key_marker or "", page.next_upload_id_marker or "")
        assert marker == ("", "")
        assert sorted(seen) == sorted(begun[2:] if delimiter else begun)
        assert [key for key, _ in seen] == [key for key, _ in sorted(seen)]
        assert prefixes == (["a/"] if delimiter else [])


@pytest.mark.parametrize("upload", ["", "x", "../tmp", "0" * 32, "0" * 31 + "/"])
async def test_an_unknown_upload_is_no_such_upload(origin: DirectoryOrigin, upload: str) -> None:
    await begin(origin)
    for work in (
        origin.put_part(REF, upload, 1, BytesBody(b"x"), {}),
        origin.list_parts(REF, upload, after_number=0, limit=1),
        origin.abort_upload(REF, upload),
        complete(origin, upload, [CompletedPart(number=1, etag="x")]),
    ):
        with pytest.raises(NoSuchUpload):
            await work


async def test_an_upload_belongs_to_its_key(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    with pytest.raises(NoSuchUpload):
        await origin.put_part(ObjectRef("nas", "data", "other"), upload, 1, BytesBody(b"x"), {})


async def test_part_numbers_have_their_bounds(origin: DirectoryOrigin) -> None:
    upload = await begin(origin)
    for number in (0, 10_001):
        with pytest.raises(InvalidArgument):
            await origin.put_part(REF, upload, number, BytesBody(b"x"), {})


async def test_a_range_past_the_source_is_no_part(origin: DirectoryOrigin) -> None:
    await put(origin, REF, b"0123456789")
    upload = await begin(origin)
    with pytest.raises(InvalidArgument):
        await origin.copy_part(
            REF,
            REF,
            upload,
            1,
            source_range=ByteRange(5, 11),
            source_conditions=Conditions(),
        )
    assert (await origin.list_parts(REF, upload, after_number=0, limit=1)).parts == ()


async def test_a_bucket_goes_with_its_uploads(origin: DirectoryOrigin, tmp_path: Path) -> None:
    upload = await begin(origin)
    await origin.put_part(REF, upload, 1, BytesBody(b"x"), {})
    assert await listed(origin, "data") == []
    await origin.delete_bucket("data")
    assert not (tmp_path / "data").exists()
