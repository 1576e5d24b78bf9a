"""What is kept of an object is bound to its file and comes back as it was said."""

import os
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    FeedrackError,
    InvalidArgument,
    InvalidRequest,
    InvalidTag,
    MetadataTooLarge,
)
from gateway.errors import NotImplemented as S3NotImplemented
from gateway.tiers.origin_directory.folders import Folder
from gateway.tiers.origin_directory.records import (
    ATTRIBUTE,
    Identity,
    Record,
    Records,
    check_tags,
    describe,
    modified_ms,
    parse_tagging,
    part_of,
    runs_of,
)


@pytest.fixture(params=["attributes", "files"])
def records(tmp_path: Path, request: pytest.FixtureRequest) -> Records:
    return Records(Folder.at(tmp_path), attributes=request.param == "attributes")


def record_of(path: Path, **fields: str) -> Record:
    return Record(identity=Identity.of(path.stat()), etag="e" * 32, headers=fields)


def attach(records: Records, path: Path, record: Record) -> None:
    with path.open("rb") as file:
        records.attach(file.fileno(), record)


def load(records: Records, path: Path) -> Record | None:
    with path.open("rb") as file:
        return records.load(file.fileno())[1]


def test_a_record_comes_back_by_descriptor_and_by_name(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    record = record_of(path, a="1")
    attach(records, path, record)
    assert load(records, path) == record
    with Folder.at(tmp_path) as folder:
        looked = records.peek(folder, "a")
    assert looked is not None
    assert looked[1] == record


def test_a_record_moves_with_its_file(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    record = record_of(path)
    attach(records, path, record)
    assert load(records, path.rename(tmp_path / "b")) == record


def test_a_record_does_not_outlive_an_edit(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    attach(records, path, record_of(path))
    os.utime(path, ns=(1, 1))
    assert load(records, path) is None


def test_a_record_too_large_for_an_attribute_is_kept_all_the_same(
    records: Records, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    small, large = record_of(path, a="1"), record_of(path, a="x" * 70_000)
    for record in (small, large, small):
        attach(records, path, record)
        assert load(records, path) == record
    attach(records, path, large)
    status = path.stat()
    path.unlink()
    records.drop(status)
    shelves = tmp_path / ".feedrack~state" / "records"
    assert [path for path in shelves.rglob("*") if path.is_file()] == []


def test_a_record_of_a_file_with_two_names_stays(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    record = record_of(path)
    attach(records, path, record)
    (tmp_path / "b").hardlink_to(path)
    status = path.stat()
    path.unlink()
    records.drop(status)
    assert load(records, tmp_path / "b") == record


def test_a_damaged_record_is_none(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    attach(records, path, record_of(path))
    for file in (tmp_path / ".feedrack~state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"\xc1")
    if ATTRIBUTE in os.listxattr(path):
        os.setxattr(path, ATTRIBUTE, b"\xc1")
    assert load(records, path) is None


def test_headers_are_kept_and_others_are_not() -> None:
    described = describe(
        {
            "content-type": "text/x",
            "x-amz-meta-a": "ü",
            "x-amz-tagging": "a=1&b=",
            "x-amz-storage-class": "STANDARD",
            "x-amz-acl": "private",
        }
    )
    assert described.headers == {"content-type": "text/x", "x-amz-meta-a": "ü"}
    assert described.tags == (("a", "1"), ("b", ""))
    assert describe({"x-amz-storage-class": "GLACIER"}).headers["x-amz-storage-class"] == "GLACIER"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"x-amz-meta-a": "x" * 2048}, MetadataTooLarge),
        ({"x-amz-meta-a": "\udcff"}, InvalidArgument),
        ({"x-amz-server-side-encryption": "aws:kms"}, S3NotImplemented),
        ({"x-amz-object-lock-mode": "GOVERNANCE"}, InvalidRequest),
        ({"x-amz-tagging": "a=1&a=2"}, InvalidTag),
        ({"x-amz-tagging": "&".join(f"k{n}=v" for n in range(11))}, InvalidTag),
        ({"x-amz-tagging": "=v"}, InvalidTag),
        ({"x-amz-tagging": "novalue"}, InvalidArgument),
        ({"x-amz-tagging": "%ff=x"}, InvalidArgument),
    ],
)
def test_what_cannot_be_kept_is_refused(headers: dict[str, str], kind: type[FeedrackError]) -> None:
    with pytest.raises(kind):
        describe(headers)


@given(st.text(max_size=40))
def test_any_tagging_header_is_tags_or_an_error(query: str) -> None:
    try:
        tags = parse_tagging(query)
    except (InvalidArgument, InvalidTag):
        return
    assert check_tags(tags) == tags


@given(st.lists(st.integers(1, 3), min_size=1, max_size=20))
def test_parts_are_found_in_their_runs(sizes: list[int]) -> None:
    record = Record(identity=Identity(1, sum(sizes), 1), parts=runs_of(sizes))
    start = 0
    for number, size in enumerate(sizes, 1):
        span = part_of(record, sum(sizes), number)
        assert span is not None
        assert (span.start, span.stop, span.count) == (start, start + size, len(sizes))
        start += size
    assert part_of(record, sum(sizes), 0) is None
    assert part_of(record, sum(sizes), len(sizes) + 1) is None


@pytest.mark.parametrize(
    ("seconds", "said_ms"),
    [(-(10**13), 0), (-1, 0), (0, 0), (10**9, 10**12), (10**13, 253_402_300_799_999)],
)
def test_any_time_a_file_system_tells_can_be_said_and_kept(seconds: int, said_ms: int) -> None:
    # Not every file system would take such a time, so none is asked.
    status = os.stat_result((0o100644, 1, 1, 1, 0, 0, 5, 0, 0, 0), {"st_mtime_ns": seconds * 10**9})
    assert modified_ms(status) == said_ms
    assert formatdate(said_ms // 1000, usegmt=True).endswith("GMT")
    identity = Identity.of(status)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(identity), type=Identity)
    assert kept == identity
