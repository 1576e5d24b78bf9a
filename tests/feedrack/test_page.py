"""A page says what is in use, and until when; readers believe exactly that."""

import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrack.page import PageLost, ReadPage, WrittenPage


@pytest.fixture
def written() -> Iterator[WrittenPage]:
    page = WrittenPage()
    yield page
    page.close()


def test_a_page_holds_until_its_time_and_for_what_it_says_alone(written: WrittenPage) -> None:
    page = ReadPage(written.descriptor)
    assert not page.holds(0, 0, 1)
    written.tell(3, 7)
    assert not page.holds(3, 7, 1)
    written.believe(100)
    assert page.holds(3, 7, 99)
    assert not page.holds(3, 7, 100)
    assert not page.holds(3, 6, 99)
    assert not page.holds(2, 7, 99)
    written.tell(3, 8)
    assert not page.holds(3, 7, 99)
    assert page.holds(3, 8, 99)
    written.tell(4, 8)
    assert not page.holds(4, 8, 99)


def test_a_page_that_is_closed_holds_nothing_any_more() -> None:
    written = WrittenPage()
    page = ReadPage(written.descriptor)
    written.tell(3, 7)
    written.believe(100)
    written.close()
    assert not page.holds(3, 7, 1)


def test_nobody_else_can_write_to_a_page_or_cut_it_short(written: WrittenPage) -> None:
    path = f"/proc/self/fd/{written.descriptor}"
    other = os.open(path, os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(other, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(other, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(other, mmap.PAGESIZE)
    os.close(other)


@given(st.binary(max_size=100))
def test_what_is_no_page_is_refused(raw: bytes) -> None:
    descriptor = os.memfd_create("no-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, raw)
        with pytest.raises(PageLost):
            ReadPage(descriptor)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with pytest.raises(PageLost, match="cut short"):
            ReadPage(descriptor)
    finally:
        os.close(descriptor)
