"""A completion channel's descriptor is told from all others, whoever else opens and closes some.

A file of memory with the kernel's name for event channels stands for one: what is looked at is the
name alone."""

import os
from collections.abc import Iterator

import pytest

from gateway.rdma.channels import event_descriptors, open_channel
from gateway.rdma.device import RdmaUnavailable


class Channel:
    """An event channel; `told` as pyverbs 59 tells its descriptor."""

    def __init__(self, *, told: bool = False) -> None:
        self.descriptor = os.memfd_create("[infinibandevent]")
        if told:
            self.fd = self.descriptor

    def close(self) -> None:
        os.close(self.descriptor)


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    before = event_descriptors()
    yield
    assert event_descriptors() == before


def test_a_new_channel_is_the_one_that_was_not_there() -> None:
    other = Channel()
    channel, descriptor = open_channel(Channel)
    assert descriptor == channel.descriptor != other.descriptor
    channel.close()
    other.close()


def test_what_the_channel_tells_is_believed() -> None:
    channel, descriptor = open_channel(lambda: Channel(told=True))
    assert descriptor == channel.descriptor
    channel.close()


def test_it_is_tried_again_where_another_was_opened_in_that_moment() -> None:
    others: list[Channel] = []

    def make() -> Channel:
        if len(others) < 3:
            others.append(Channel())
        return Channel()

    channel, descriptor = open_channel(make)
    assert descriptor == channel.descriptor
    assert len(others) == 3
    for each in (channel, *others):
        each.close()


def test_it_is_tried_again_where_it_has_the_number_of_one_that_was_closed() -> None:
    leaving = [Channel(), Channel()]

    def make() -> Channel:
        if leaving:
            leaving.pop(0).close()
        return Channel()

    channel, descriptor = open_channel(make)
    assert descriptor == channel.descriptor
    channel.close()


def test_where_it_can_never_be_told_nothing_is_left() -> None:
    others: list[Channel] = []

    def make() -> Channel:
        others.append(Channel())
        return Channel()

    with pytest.raises(RdmaUnavailable, match="cannot be told"):
        open_channel(make)
    for each in others:
        each.close()
