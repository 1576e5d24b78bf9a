"""The census: everyone sees how many connections the others have, and who takes more."""

import os
from collections.abc import Iterator

import pytest

from gateway.s3.census import Census, make_memory


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_memory()
    yield descriptor
    os.close(descriptor)


def test_the_others_are_counted_and_the_dead_struck_out(memory: int) -> None:
    one, two, three = (Census(memory, place) for place in (0, 7, 255))
    supervisor = Census(memory)
    assert [each.elsewhere() for each in (one, two, three, supervisor)] == [0, 0, 0, 0]
    one.count(3)
    two.count(10)
    three.count(4096)
    assert [each.elsewhere() for each in (one, two, three, supervisor)] == [4106, 4099, 13, 4109]
    supervisor.strike(255)
    assert [each.elsewhere() for each in (one, two)] == [10, 3]
    for each in (one, two, three, supervisor):
        each.close()


def test_only_who_takes_connections_can_have_too_few(memory: int) -> None:
    one, two = Census(memory, 0), Census(memory, 1)
    one.open()
    one.count(1)
    assert not one.has_more()
    two.open()
    assert one.has_more()
    assert not two.has_more()
    two.count(1)
    assert not one.has_more()
    one.count(2)
    assert one.has_more()
    two.shut()
    assert not one.has_more()
    assert two.elsewhere() == 2
    one.close()
    two.close()
