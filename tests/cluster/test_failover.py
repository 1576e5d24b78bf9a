"""Redis fails over: a primary with a replica, and Sentinels that choose."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cluster.conftest import MakeFleet, absent
from tests.cluster.fleet import Fleet
from tests.cluster.loopback import Loopback
from tests.cluster.services import RedisProcess
from tests.cluster.test_failures import Object
from tests.waiting import wait_until

_SENTINELS = 3


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


class Sentinels:
    """Real redis-sentinels that watch one primary."""

    def __init__(self, folder: Path, network: Loopback, primary: RedisProcess) -> None:
        self._host = network.services.host
        self._ports = [network.port("sentinel", number) for number in range(_SENTINELS)]
        self._processes = []
        for number, port in enumerate(self._ports):
            place = folder / f"sentinel{number}"
            place.mkdir(parents=True)
            (place / "sentinel.conf").write_text(
                f"port {port}\nbind {self._host}\ndir {place}\nprotected-mode no\n"
                # What others see of a connection is not where they find this one.
                f"sentinel announce-ip {self._host}\n"
                f"sentinel monitor fleet {primary.host} {primary.port} 2\n"
                "sentinel down-after-milliseconds fleet 1000\n"
                "sentinel failover-timeout fleet 5000\n"
            )
            self._processes.append(
                RedisProcess(place, network.services, port, sentinel=True).start(empty=False)
            )

    @property
    def url(self) -> str:
        hosts = ",".join(f"{self._host}:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/fleet"

    def primary(self) -> int:
        with redis.Redis(self._host, self._ports[0], socket_timeout=2) as client:
            found = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "fleet")
            return int(found[1])

    def know_each_other(self) -> bool:
        """All of them, and the replica."""
        with redis.Redis(self._host, self._ports[0], socket_timeout=2) as client:
            raw = client.execute_command("SENTINEL MASTER", "fleet")
        told = {_text(name): value for name, value in raw.items()}
        return int(told["num-other-sentinels"]) == _SENTINELS - 1 and int(told["num-slaves"]) == 1

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


@pytest.fixture
def watched(make_fleet: MakeFleet, tmp_path: Path) -> Iterator[tuple[Fleet, Sentinels]]:
    """A fleet of three whose Redis has a replica and is watched."""
    if shutil.which("redis-server") is None:
        absent("redis", "redis-server is not installed")
    network = Loopback()
    spot = network.services
    here = ["--replica-announce-ip", spot.host]
    primary = RedisProcess(tmp_path / "primary", spot, network.port("redis", 1), here).start()
    replica = RedisProcess(
        tmp_path / "replica", spot, network.port("redis", 2),
        [*here, "--replicaof", f"{primary.host} {primary.port}"],
    ).start()  # fmt: skip
    sentinels = Sentinels(tmp_path, network, primary)
    try:
        wait_until(sentinels.know_each_other)
        settings: dict[str, Any] = {
            "cluster": {"redis_url": sentinels.url, "redis_replicas": 1},
        }
        fleet = make_fleet(
            racks=("r1", "r1", "r2"), network=network, node_settings=lambda number: settings
        )
        fleet.redis.stop()
        fleet._redis = primary
        yield fleet, sentinels
    finally:
        sentinels.stop()
        replica.stop()
        primary.stop()


@pytest.mark.timeout(180)
def test_after_a_failover_writes_go_on_and_nothing_stale_is_served(
    watched: tuple[Fleet, Sentinels], request: pytest.FixtureRequest
) -> None:
    fleet, sentinels = watched
    thing = Object(fleet, request.node.name)
    thing.known_to_all(b"1")
    before = sentinels.primary()
    fleet.redis.stop()
    assert [thing.get(number) for number in range(3)] == [b"1"] * 3
    wait_until(lambda: sentinels.primary() != before, "there is a failover")
    # The old primary comes back as the replica that `redis_replicas = 1` wants.
    fleet.start_redis()
    for turn in range(6):
        body = b"after %d" % turn
        thing.put_at_last(turn % 3, body)
        assert [thing.get(number) for number in range(3)] == [body] * 3
    fleet.await_members()
