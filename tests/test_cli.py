"""The commands: what they print, and how they exit."""

import json
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_BIN = Path(sys.executable).parent
_WORKING = """
[origins.nas]
type = "directory"
path = "/srv/data"

[cache]
capacity = "10GiB"
"""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_BIN / command[0]), *command[1:]], capture_output=True, text=True, timeout=60
    )


def test_config_prints_the_resolved_configuration_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(_WORKING)
    done = _run("feedrack", "config", str(path))
    assert done.returncode == 0
    resolved = tomllib.loads(done.stdout)
    assert resolved["cache"]["capacity"] == 10 * 1024**3
    assert resolved["s3"]["listen"] == "127.0.0.1:9000"
    # What was printed is a configuration itself.
    path.write_text(done.stdout)
    assert _run("feedrack", "config", str(path)).stdout == done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_WORKING + "colour = 1", "cache"),
        (_WORKING.replace("10GiB", "lots"), "cache.capacity"),
        ("[node]\n", "origins"),
        ("not toml", "f.toml"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_and_exits_2(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    for command in (("config", str(path)), ("serve", "--config", str(path))):
        done = _run("feedrack", *command)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_missing_secret_is_named_by_its_setting_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        _WORKING
        + '[[tenants]]\nname = "t"\naccess_key = "t"\nsecret_key_file = "/nowhere/secret"\n'
    )
    done = _run("feedrack", "serve", "--config", str(path))
    assert done.returncode == 2
    assert "tenants[0].secret_key_file" in done.stderr


def test_a_port_that_is_taken_is_said_and_exits_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "f.toml"
        path.write_text(
            f'[s3]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n'
            f'[admin]\nlisten = "127.0.0.1:0"\n'
            f'[cache]\npath = "{tmp_path}/cache"\ncapacity = "1GiB"\n'
            f'[origins.nas]\ntype = "directory"\npath = "{tmp_path}"\n'
        )
        done = _run("feedrack", "serve", "--config", str(path))
    assert done.returncode == 1
    assert "address already in use" in done.stderr.lower()


def test_status_of_a_node_that_is_not_there_exits_1() -> None:
    done = _run("feedrack", "status", "--admin", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_rdma_check_says_why_a_host_will_not_use_rdma_and_exits_1(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    # Whatever this machine has, it has no such device.
    path.write_text(_WORKING + '[rdma]\ndevice = "no-such-device"\n')
    done = _run("feedrack", "rdma-check", "--config", str(path))
    assert done.returncode == 1
    assert "RDMA will not be used: " in done.stdout
    assert "→" in done.stdout
    told = json.loads(_run("feedrack", "rdma-check", "--config", str(path), "--json").stdout)
    assert told["used"] is False
    assert told["verdict"] in done.stdout
    errors = [each for each in told["findings"] if each["state"] == "error"]
    assert errors
    assert all(each["why"] and each["do"] for each in errors)


def test_rdma_check_of_a_wrong_configuration_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(_WORKING + "[rdma]\nport = 0\n")
    done = _run("feedrack", "rdma-check", "--config", str(path))
    assert done.returncode == 2
    assert "rdma.port" in done.stderr


def test_packer_says_what_it_does_and_what_is_wrong_use_of_it() -> None:
    assert "pack" in _run("packer", "--help").stdout
    assert _run("packer", "pack", "no-address").returncode == 2
