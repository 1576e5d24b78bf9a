"""Two machines on one wire: messages cross it, also when it loses some, and it can be cut."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

_SERVER = "10.77.0.1"
_CARD = "eth0"
# As server.sh has them.
_ROUNDS = 20
_SIZE_BYTES = 65536
_BOTH_WAYS = f"{2 * _ROUNDS * _SIZE_BYTES} bytes in"
_WAIT_SECONDS = 60.0


def _run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _port() -> str:
    return Path("/sys/class/infiniband/rxe0/ports/1/state").read_text().strip()


def _until_port_is(state: str) -> None:
    wait_until(lambda: _port() == state, f"the port is {state}")


def _pingpong() -> str:
    """What the client says, once the server had an ear for it: it ends with each client."""
    words = ["ibv_rc_pingpong", "--ib-dev", "rxe0", "--gid-idx", "1", "--iters", str(_ROUNDS)]
    words += ["--size", str(_SIZE_BYTES), "--mtu", "4096", "--chk", _SERVER]
    by = time.monotonic() + _WAIT_SECONDS
    while True:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_WAIT_SECONDS)
        if "Couldn't connect" not in done.stderr:
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout
        assert time.monotonic() < by, done.stderr
        time.sleep(0.1)


@pytest.fixture
def lossy() -> Iterator[None]:
    _run("tc", "qdisc", "add", "dev", _CARD, "root", "netem", "loss", "2%")
    yield
    _run("tc", "qdisc", "del", "dev", _CARD, "root")


def test_messages_cross_the_wire() -> None:
    before = _sent_bytes()
    said = _pingpong()
    assert _BOTH_WAYS in said
    assert _sent_bytes() - before > _ROUNDS * _SIZE_BYTES


def test_what_the_wire_loses_is_sent_again(lossy: None) -> None:
    assert _BOTH_WAYS in _pingpong()
    assert "dropped 0," not in _run("tc", "-s", "qdisc", "show", "dev", _CARD)


def test_a_cut_wire_takes_the_port_down_until_it_is_mended() -> None:
    _run("ip", "link", "set", _CARD, "down")
    _until_port_is("1: DOWN")
    _run("ip", "link", "set", _CARD, "up")
    _until_port_is("4: ACTIVE")
    assert _BOTH_WAYS in _pingpong()


def _sent_bytes() -> int:
    return int(Path(f"/sys/class/net/{_CARD}/statistics/tx_bytes").read_text())
