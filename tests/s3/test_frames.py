"""Frames: what goes in comes out, in whatever pieces it travels; what is no frame is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.frames import (
    LIMIT_BYTES,
    FrameError,
    FrameReader,
    Kind,
    count_in,
    counted,
    frame,
    header,
)

_BULK = (Kind.DATA, Kind.ASK)
_FRAMES = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=40)), max_size=12)


def _joined(parts: list[tuple[Kind, bytes]]) -> list[tuple[Kind, bytes]]:
    """Neighbouring parts of bulk frames as one; empty ones say nothing."""
    joined: list[tuple[Kind, bytes]] = []
    for kind, payload in parts:
        if kind in _BULK and joined and joined[-1][0] is kind:
            joined[-1] = (kind, joined[-1][1] + payload)
        elif payload or kind not in _BULK:
            joined.append((kind, payload))
    return joined


@given(_FRAMES, st.lists(st.integers(0, 600), max_size=30))
def test_frames_survive_any_cutting(frames: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(kind, payload) for kind, payload in frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader()
    found = [part for start, stop in pairwise(edges) for part in reader.feed(stream[start:stop])]
    assert _joined(found) == _joined(frames)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    try:
        found = FrameReader().feed(data)
    except FrameError:
        return
    assert sum(len(payload) for _, payload in found) <= len(data)


def test_bulk_is_handed_on_before_it_is_whole_and_the_rest_is_not() -> None:
    reader = FrameReader()
    assert reader.feed(header(Kind.DATA, 10) + b"abc") == [(Kind.DATA, b"abc")]
    assert reader.feed(b"defghij") == [(Kind.DATA, b"defghij")]
    assert reader.feed(header(Kind.NOTES, 4) + b"ab") == []
    assert reader.feed(b"cd") == [(Kind.NOTES, b"abcd")]


def test_what_no_process_of_this_node_sends_is_refused() -> None:
    with pytest.raises(FrameError, match="type 99"):
        FrameReader().feed(b"\x63\0\0\0\0")
    with pytest.raises(FrameError, match="too long"):
        FrameReader().feed(header(Kind.NOTES, LIMIT_BYTES + 1))
    with pytest.raises(FrameError, match="number"):
        count_in(b"123")


def test_numbers_are_carried() -> None:
    [(kind, payload)] = FrameReader().feed(counted(Kind.DONE, 2**40))
    assert (kind, count_in(payload)) == (Kind.DONE, 2**40)
