"""Nodes as processes of their own, killed and frozen while they are read through."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.cluster.members import Member
from gateway.cluster.placement import homes
from gateway.model.objects import ObjectRef
from tests.cluster.conftest import MakeFleet
from tests.cluster.fleet import Fleet
from tests.faulty import Fault
from tests.waiting import wait_until

CHUNK = 1024 * 1024
THREE = ("a", "b", "c")


@pytest.fixture
def three(make_fleet: MakeFleet) -> Fleet:
    """Three nodes in three racks."""
    fleet = make_fleet(racks=THREE, settings={"buckets": {"train": {"freshness_seconds": 3600}}})
    # Until nodes that were here before could no longer be.
    wait_until(
        lambda: all(fleet.counter(number, "feedrack_lease_seconds") > 0 for number in range(3))
    )
    return fleet


def key_at(fleet: Fleet, number: int) -> str:
    """A key whose first chunk has its first home there."""
    found = fleet.ask(number, "/v1/members")["members"]
    capacity = 256 * 1024**2
    members = [
        Member(
            id=each["id"],
            incarnation="",
            rack=each["rack"],
            zone="",
            peers="",
            s3="",
            admin="",
            capacity_bytes=capacity,
            version="",
        )
        for each in found
    ]
    return next(
        key
        for key in (f"k{n}" for n in range(1000))
        if homes(members, ObjectRef("main", "train", key), 0)[0].id == f"n{number + 1}"
    )


def put(fleet: Fleet, key: str, body: bytes) -> bytes:
    """Past the nodes."""
    fleet.origin_client().put_object(Bucket="train", Key=key, Body=body)
    return body


def read(fleet: Fleet, number: int, key: str) -> bytes:
    body: bytes = (
        fleet.client(number, read_timeout=60).get_object(Bucket="train", Key=key)["Body"].read()
    )
    return body


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_origin_gives_no_byte_twice_when_a_filling_process_ends_half_way(
    three: Fleet, end: signal.Signals
) -> None:
    key = key_at(three, 0)
    body = put(three, key, random.Random(1).randbytes(CHUNK))
    half = CHUNK // 2
    three.origin.fail(Fault("stall", "GetObject", after_bytes=half))
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(read, three, number, key) for number in (1, 2)]
        # What the origin gave has come to those who follow.
        wait_until(
            lambda: all(
                three.counter(number, "feedrack_cross_rack_bytes_total") == half
                for number in (1, 2)
            )
        )
        assert three.origin_bytes() == half
        begun = time.monotonic()
        if end == signal.SIGKILL:
            three.kill(0)
        else:
            three.freeze(0)
        assert [each.result() for each in reads] == [body, body]
    assert three.origin_bytes() == CHUNK
    assert three.origin_gets() == 2
    # Its membership ends after some seconds, and with it what was waited for.
    assert time.monotonic() - begun < 12


def test_a_frozen_node_is_not_waited_for_again(three: Fleet) -> None:
    key = key_at(three, 0)
    body = put(three, key, b"x" * 1000)
    three.freeze(0)
    begun = time.monotonic()
    assert read(three, 1, key) == body
    assert time.monotonic() - begun < 6
    begun = time.monotonic()
    assert read(three, 1, key) == body
    assert time.monotonic() - begun < 1
