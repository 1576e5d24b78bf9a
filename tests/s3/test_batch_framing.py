"""Frames and tar: what is written is what an independent reader finds."""

import io
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from gateway.errors import NoSuchKey, OriginError, S3Error
from gateway.model.objects import ObjectInfo
from gateway.model.ranges import ByteRange
from gateway.s3.batch_framing import Frames, Framing
from gateway.s3.batch_tar import Tar
from tests.s3.batch_reading import parse_frames

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
_FAR = 8**11


class Member(Struct, frozen=True):
    key: str
    body: bytes
    modified_ms: int = 1_700_000_000_000
    etag: str = "e"
    content_type: str | None = "image/png"
    # Where the body begins in the whole object, and how large that is; None: it is all of it.
    part: tuple[int, int] | None = None
    error: S3Error | None = None

    def written(self, framing: Framing, position: int) -> bytes:
        if self.error is not None:
            return framing.failure(position, self.key, self.error)
        start, size_bytes = self.part or (0, len(self.body))
        headers = {} if self.content_type is None else {"content-type": self.content_type}
        info = ObjectInfo(
            etag=self.etag,
            size_bytes=size_bytes,
            last_modified_ms=self.modified_ms,
            headers=headers,
        )
        wanted = ByteRange(start, start + len(self.body))
        partial = self.part is not None
        opening = framing.opening(position, self.key, info, wanted, partial=partial)
        return opening + self.body + framing.closing(len(self.body))


_PARTS = st.none() | st.tuples(st.integers(0, 9), st.integers(10_000, 2**50))
MEMBERS = st.builds(
    Member,
    key=KEYS,
    body=st.binary(max_size=1200),
    modified_ms=st.integers(-(10**14), 10**15),
    etag=st.text(max_size=40),
    content_type=st.none() | st.text(max_size=40),
    part=_PARTS,
) | st.builds(
    Member,
    key=KEYS,
    body=st.just(b""),
    error=st.builds(OriginError, st.text(max_size=30), st.integers(400, 599), st.text(max_size=50)),
)


def written(framing: Framing, members: list[Member]) -> bytes:
    failed = sum(member.error is not None for member in members)
    objects = [member.written(framing, position) for position, member in enumerate(members)]
    return b"".join([*objects, framing.end(objects=len(members), failed=failed)])


def of_range(member: Member) -> str | None:
    if member.part is None:
        return None
    start, total = member.part
    return f"bytes {start}-{start + len(member.body) - 1}/{total}"


@given(st.lists(MEMBERS, max_size=8))
def test_frames_are_read_back_as_they_were_written(members: list[Member]) -> None:
    frames, told = parse_frames(written(Frames(), members))
    failed = sum(member.error is not None for member in members)
    assert told == {"objects": len(members), "failed": failed}
    for position, (frame, member) in enumerate(zip(frames, members, strict=True)):
        assert (frame.position, frame.body) == (position, member.body)
        if member.error is not None:
            assert frame.status == member.error.status
            assert frame.told == {"code": member.error.code, "message": member.error.message}
            continue
        assert frame.status == (206 if member.part else 200)
        assert frame.told["etag"] == member.etag
        assert frame.told["modified_ms"] == member.modified_ms
        assert frame.told["content_type"] == (
            "binary/octet-stream" if member.content_type is None else member.content_type
        )
        assert frame.told.get("range") == of_range(member)


@given(st.lists(MEMBERS, min_size=1, max_size=5), st.data())
def test_frames_that_were_cut_short_are_seen_to_be(
    members: list[Member], data: st.DataObject
) -> None:
    whole = written(Frames(), members)
    stop = data.draw(st.integers(0, len(whole) - 1))
    frames, told = parse_frames(whole[:stop])
    assert told is None
    assert [frame.body for frame in frames] == [member.body for member in members[: len(frames)]]


def test_metadata_that_no_frame_has_room_for_is_left_out() -> None:
    for member in (
        Member("k", b"body", content_type="x" * 70_000),
        Member("k", b"body", content_type="\udcff"),
        Member("k", b"body", etag="\udcff" * 40_000),
        Member("k", b"", error=OriginError("\udcff" * 70_000, 500, "y\udcff" * 70_000)),
    ):
        frames, told = parse_frames(written(Frames(), [member]))
        assert told is not None
        assert frames[0].body == member.body


@given(st.lists(MEMBERS, max_size=8))
@example(
    [Member("a", b"x" * 512), Member("b/", b""), Member("k" * 100, b""), Member("k" * 101, b"")]
)
@example([Member("a\0b", b"1"), Member("ä", b"2", modified_ms=-1), Member("\n=9 path=x\n", b"3")])
@example([Member("a", b"", modified_ms=_FAR * 1000), Member("b", b"", modified_ms=_FAR * 1000 - 1)])
def test_python_reads_the_tar_back_as_it_was_written(members: list[Member]) -> None:
    data = written(Tar(), members)
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as archive:
        for member in members:
            found = archive.next()
            assert found is not None
            assert found.isreg()
            assert found.pax_headers.get("path", found.name) == member.key
            content = archive.extractfile(found)
            assert content is not None
            assert content.read() == member.body
            told = {
                name: value
                for name, value in found.pax_headers.items()
                if name.startswith("FEEDRACK.")
            }
            if member.error is not None:
                status, code = str(member.error.status), member.error.code
                assert told == {"FEEDRACK.status": status, "FEEDRACK.code": code}
            else:
                assert found.mtime == member.modified_ms // 1000
                assert told.get("FEEDRACK.range") == of_range(member)
        assert archive.next() is None


@given(KEYS.filter(lambda key: key == key.rstrip("/")))
def test_a_member_is_called_by_its_key(key: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(written(Tar(), [Member(key, b"1")]))) as archive:
        assert archive.getnames() == [key]


@pytest.mark.parametrize("size_bytes", [8**11 - 1, 8**11, 2**45])
def test_a_size_that_octal_digits_have_no_room_for_is_told(size_bytes: int) -> None:
    info = ObjectInfo(etag="e", size_bytes=size_bytes, last_modified_ms=0)
    header = Tar().opening(0, "k", info, ByteRange(0, size_bytes), partial=False)
    with tarfile.open(fileobj=io.BytesIO(header)) as archive:
        found = archive.next()
    assert found is not None
    assert found.size == size_bytes


def test_a_common_object_costs_one_block_of_header() -> None:
    assert len(written(Tar(), [Member("imagenet/train/n01440764_10026.JPEG", b"")])) == 3 * 512
    assert len(written(Tar(), [Member("k", b"", error=NoSuchKey())])) == 5 * 512
