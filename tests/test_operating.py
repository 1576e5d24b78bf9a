"""What operators are given beside the TOML files: units, Redis's file, docker-compose.yml."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
import yaml

from gateway.config import ClusterConfig, Config, S3OriginConfig, load, parse_listen
from tests.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_COMPOSE = _ROOT / "docker-compose.yml"
_UNITS = sorted((_ROOT / "conf" / "systemd").glob("*.service"))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_COMPOSE.read_text("utf-8"))
    return found


def _nodes(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: service
        for name, service in compose["services"].items()
        if "FEEDRACK__NODE__ID" in service.get("environment", {})
    }


def _config(service: dict[str, Any]) -> Config:
    """What a node of it runs with: the file that is mounted, under its environment."""
    [mounted] = [
        volume.split(":")[0] for volume in service["volumes"] if "/etc/feedrack/" in volume
    ]
    return load(_ROOT / mounted, service["environment"])


def test_the_compose_file_is_one_by_its_own_schema(compose: dict[str, Any]) -> None:
    """tests/compose-spec.json is the Compose Specification's (Apache-2.0)."""
    schema = json.loads((_ROOT / "tests" / "compose-spec.json").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(compose)


def test_it_has_six_nodes_in_three_racks(compose: dict[str, Any]) -> None:
    racks = [_config(service).node.rack for service in _nodes(compose).values()]
    assert sorted(racks) == ["r1", "r1", "r2", "r2", "r3", "r3"]


def test_a_node_is_called_and_found_by_its_services_name(compose: dict[str, Any]) -> None:
    for name, service in _nodes(compose).items():
        config = _config(service)
        assert config.node.id == name
        assert config.cluster is not None
        assert config.cluster.advertise is not None
        host, port = parse_listen(config.cluster.advertise, "advertise")
        assert host == name
        assert port == parse_listen(config.cluster.listen or "", "listen")[1]


def test_ports_are_published_once_each_and_lead_to_what_is_listened_on(
    compose: dict[str, Any],
) -> None:
    published = []
    for service in _nodes(compose).values():
        [port] = service["ports"]
        _, outer, inner = port.split(":")
        published.append(outer)
        assert int(inner) == parse_listen(_config(service).s3.listen, "s3.listen")[1]
    assert len(set(published)) == len(published)


def test_the_configuration_names_services_and_secrets_that_are_there(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]
    made = services["keys"]["command"][0]
    for service in _nodes(compose).values():
        config = _config(service)
        assert isinstance(config.cluster, ClusterConfig)
        assert config.cluster.redis_url == "redis://redis:6379/0"
        cloud = config.origins["cloud"]
        assert isinstance(cloud, S3OriginConfig)
        assert cloud.endpoint_url == "http://origin:8333"
        assert "-s3.port=8333" in services["origin"]["command"]
        named = (
            config.admin.token_file, config.cluster.secret_file, cloud.secret_key_file,
            *(tenant.secret_key_file for tenant in config.tenants),
        )  # fmt: skip
        for path in named:
            assert path is not None
            assert path.parent == Path("/keys")
            assert path.name in made


def test_all_that_is_mounted_or_waited_for_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (_ROOT / source).is_file(), source
            else:
                assert source in compose["volumes"]
        for awaited in service.get("depends_on", ()):
            assert awaited in compose["services"]


def test_the_image_is_built_of_what_the_project_has() -> None:
    copied = [
        line.split()[1:-1]
        for line in (_ROOT / "Dockerfile").read_text("utf-8").splitlines()
        if line.startswith("COPY")
    ]
    let_in = (_ROOT / ".dockerignore").read_text("utf-8")
    for source in [each for line in copied for each in line]:
        assert (_ROOT / source).exists()
        assert f"!{source}\n" in let_in


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_one_that_systemd_takes(unit: Path, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        if "systemd" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names systemd, and systemd-analyze is not installed")
        pytest.skip("systemd-analyze is not installed")
    # It wants the program to be there.
    program = tmp_path / "feedrack"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit.read_text("utf-8").replace("/opt/feedrack/bin/feedrack", str(program))
    name = unit.name.replace("@", "@nvme0")
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True
    )
    complaints = [
        line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line
    ]
    assert done.returncode == 0, done.stderr
    assert not complaints


def test_units_leave_more_time_to_drain_than_a_drain_may_take() -> None:
    allowed = load(_ROOT / "conf" / "production.toml", {}).s3.limits.drain_timeout_seconds
    for unit in _UNITS:
        [line] = [
            line for line in unit.read_text("utf-8").splitlines() if line.startswith("TimeoutStop")
        ]
        assert float(line.partition("=")[2]) > allowed


def test_redis_runs_with_its_file_evicts_nothing_and_writes_nothing_down(tmp_path: Path) -> None:
    program = shutil.which("redis-server")
    if program is None:
        if "redis" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names redis, and redis-server is not installed")
        pytest.skip("redis-server is not installed")
    where = tmp_path / "redis.sock"
    process = subprocess.Popen(
        [program, str(_ROOT / "conf" / "redis.conf"), "--port", "0", "--unixsocket", str(where),
         "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: where.exists() or process.poll() is not None, "Redis listens")
        assert process.poll() is None
        with redis.Redis(unix_socket_path=str(where)) as client:
            told = {
                name: client.config_get(name)[name]
                for name in ("maxmemory-policy", "maxmemory", "save", "appendonly")
            }
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert told == {
        "maxmemory-policy": "noeviction", "maxmemory": str(2 * 1024**3), "save": "",
        "appendonly": "no",
    }  # fmt: skip
