"""The fleet itself: what is cut carries nothing, what is healed carries on, nothing is left."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.conftest import MakeFleet
from tests.cluster.fleet import Fleet
from tests.cluster.netns import Namespaces
from tests.cluster.relay import Relays

TWO_RACKS = ("r1", "r1", "r2")


@pytest.fixture(params=["loopback", "namespaces"])
def fleet(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> Fleet:
    """Three strangers before one origin."""
    network = None
    if request.param == "namespaces":
        network = request.getfixturevalue("namespaces")(rate_mbit=500)
    return make_fleet(racks=TWO_RACKS, network=network, clustered=False)


def test_a_node_cut_from_the_origin_reads_nothing_new_until_it_is_healed(fleet: Fleet) -> None:
    fleet.origin_client().put_object(Bucket="train", Key="k", Body=b"v")
    fleet.cut(1, "origin")
    with pytest.raises((BotoCoreError, ClientError)):
        fleet.client(1, read_timeout=1).get_object(Bucket="train", Key="k")
    assert fleet.client(2).get_object(Bucket="train", Key="k")["Body"].read() == b"v"
    fleet.heal(1, "origin")
    assert fleet.client(1).get_object(Bucket="train", Key="k")["Body"].read() == b"v"


def test_a_node_is_killed_and_comes_back_where_it_was(fleet: Fleet) -> None:
    before = fleet.node(0).endpoint_url
    fleet.kill(0)
    assert fleet.running() == [1, 2]
    fleet.restart(0)
    assert fleet.node(0).endpoint_url == before
    assert fleet.client(0).list_buckets()["Buckets"]


def test_a_frozen_node_answers_when_it_is_thawed(fleet: Fleet) -> None:
    fleet.freeze(2)
    with pytest.raises(BotoCoreError):
        fleet.client(2, read_timeout=1).list_buckets()
    fleet.thaw(2)
    assert fleet.client(2).list_buckets()["Buckets"]


def test_the_origin_counts_what_it_is_asked_for(fleet: Fleet) -> None:
    fleet.origin_client().put_object(Bucket="train", Key="k", Body=b"v" * 1000)
    for number in fleet.running():
        assert fleet.client(number).get_object(Bucket="train", Key="k")["Body"].read()
    assert fleet.origin_gets() == 3
    assert fleet.origin_bytes() == 3000


class Line:
    """A connection through a relay to a server that sends back what it gets."""

    def __init__(self, relays: Relays) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.relays = relays
        port = relays.open("line", self._server.getsockname()[:2])
        self.near = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.far, _ = self._server.accept()

    def crosses(self, word: bytes, *, within_seconds: float = 60.0) -> bool:
        self.near.sendall(word)
        self.far.settimeout(within_seconds)
        try:
            return self.far.recv(100) == word
        except TimeoutError:
            return False

    def close(self) -> None:
        for each in (self.near, self.far, self._server):
            each.close()


@pytest.fixture
def line() -> Iterator[Line]:
    relays = Relays()
    made = Line(relays)
    yield made
    made.close()
    relays.close()


def test_a_relay_that_holds_lets_go_of_all_it_held(line: Line) -> None:
    assert line.crosses(b"one")
    line.relays.set("line", "hold")
    assert not line.crosses(b"two", within_seconds=0.2)
    line.relays.set("line", "open")
    line.far.settimeout(60)
    assert line.far.recv(100) == b"two"


def test_a_relay_that_refuses_resets_what_stands(line: Line) -> None:
    line.relays.set("line", "refuse")
    with pytest.raises(ConnectionResetError):
        line.near.recv(100)
    with pytest.raises(ConnectionResetError):
        line.far.recv(100)


def test_a_relay_delays_what_crosses_it(line: Line) -> None:
    line.relays.set("line", delay_seconds=0.3)
    begun = time.monotonic()
    assert line.crosses(b"late")
    assert time.monotonic() - begun >= 0.3


def test_a_relay_can_hold_one_process_and_not_another(line: Line) -> None:
    line.relays.set("line", "hold", owners=[1])
    assert line.crosses(b"not theirs")
    line.relays.set("line", "hold", owners=[os.getpid()])
    assert not line.crosses(b"theirs", within_seconds=0.2)


def test_namespaces_that_a_killed_run_has_left_are_removed_by_the_next(
    namespaces: Callable[..., Namespaces],
) -> None:
    left = namespaces()
    left.start(("r1",))
    assert left._lock is not None
    assert left._relays is not None
    left._relays.close()
    number = left._number
    sleeper = subprocess.Popen([*left.node(0).prefix, "sleep", "600"])
    # As the kernel does when a process ends.
    os.close(left._lock)
    following = namespaces()
    following.start(("r1",))
    try:
        assert sleeper.wait(timeout=60) != 0
        assert following._number == number or f"feedrack{number}-hub" not in _spaces()
    finally:
        following.close()
    assert f"feedrack{number}-" not in _spaces()


def _spaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
