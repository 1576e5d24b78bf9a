"""Frames are read as they were sent, and an answer that is cut short anywhere is never believed."""

import io
import json
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrack.frames import (
    Frame,
    FramesBroken,
    encode_request,
    read_frames,
    said_of,
)
from tests.feedrack.endpoint import frame_bytes, frames_answer

OBJECTS = st.lists(
    st.tuples(st.sampled_from([200, 206, 404, 503]), st.binary(max_size=200)), max_size=12
)


def read(raw: bytes, count: int) -> list[Frame]:
    return list(read_frames(io.BytesIO(raw).read, count))


@given(OBJECTS)
def test_frames_are_read_as_they_were_sent(objects: Sequence[tuple[int, bytes]]) -> None:
    found = read(frames_answer(objects), len(objects))
    assert [(frame.position, frame.status, frame.body) for frame in found] == [
        (number, status, body) for number, (status, body) in enumerate(objects)
    ]


@given(OBJECTS, st.data())
def test_an_answer_cut_short_is_never_believed(
    objects: Sequence[tuple[int, bytes]], data: st.DataObject
) -> None:
    raw = frames_answer(objects)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(FramesBroken):
        read(raw[:cut], len(objects))


@given(st.binary(max_size=300), st.integers(0, 10))
def test_nonsense_is_broken_or_read(raw: bytes, count: int) -> None:
    try:
        found = read(raw, count)
    except FramesBroken:
        return
    assert all(frame.position < count for frame in found)


@pytest.mark.parametrize(
    "total",
    [
        {"objects": 2, "failed": 0},
        {"objects": 1, "failed": 1},
        {},
        [],
        "x",
    ],
)
def test_a_total_that_is_another_is_not_believed(total: object) -> None:
    raw = frame_bytes(0, 200, {}, b"x") + frame_bytes(0xFFFFFFFF, 0, total, b"")
    with pytest.raises(FramesBroken):
        read(raw, 1)


def test_a_length_is_only_believed_as_far_as_bytes_come() -> None:
    with pytest.raises(FramesBroken):
        read(struct.pack(">IHHQ", 0, 200, 0, 2**63) + b"x", 1)


def test_what_is_said_of_an_object_is_json() -> None:
    frame = Frame(0, 404, b'{"code": "NoSuchKey", "message": "m", "more": 1}', b"")
    assert (said_of(frame).code, said_of(frame).message) == ("NoSuchKey", "m")
    assert said_of(Frame(0, 200, b"", b"")).etag == ""
    with pytest.raises(FramesBroken):
        said_of(Frame(0, 404, b"[1", b""))


def test_a_request_names_keys_and_ranges() -> None:
    assert json.loads(encode_request(["a", "ü"], [None, "bytes=0-1"])) == {
        "objects": [{"key": "a"}, {"key": "ü", "range": "bytes=0-1"}],
        "format": "frames",
    }
