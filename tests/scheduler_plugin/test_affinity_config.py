"""The daemon's configuration: refused by the path of what is wrong, and never shown secrets."""

import re
from pathlib import Path
from typing import Any

import pytest

from scheduler_plugin.config import ConfigError, load, parse, read_token
from scheduler_plugin.dataset import Dataset
from scheduler_plugin.readers import readers_of

SAMPLE = Path(__file__).parents[2] / "scheduler_plugin" / "site" / "affinity.toml"
LEAST: dict[str, Any] = {"gateways": {"admin_urls": ["http://gw1:9001"], "token_file": "/t"}}


def test_the_sample_is_the_defaults() -> None:
    sample = load(SAMPLE)
    assert sample == parse(
        {"gateways": {**LEAST["gateways"], "token_file": "/etc/feedrack/admin.token"}}
    )


def test_what_the_sample_leaves_out_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "affinity.toml"
    path.write_text(re.sub(r"^# (?=[a-z0-9_-]+ = )", "", SAMPLE.read_text(), flags=re.MULTILINE))
    config = load(path)
    assert config.datasets == (Dataset("train", "imagenet"),)
    assert config.readers["vision"] == ("alice", "@vision")


@pytest.mark.parametrize(
    ("over", "path"),
    [
        ({"gateways": {"admin_urls": [], "token_file": "/t"}}, "gateways.admin_urls"),
        ({"gateways": {"admin_urls": ["gw1"], "token_file": "/t"}}, "gateways.admin_urls"),
        ({"gateways": {"admin_urls": ["http://a"], "token_file": "t"}}, "gateways.token_file"),
        ({"ranking": {"refresh_seconds": 0}}, "ranking.refresh_seconds"),
        ({"ranking": {"refresh_seconds": 100.0}}, "ranking.valid_seconds"),
        ({"ranking": {"datasets": ["imagenet"]}}, "ranking.datasets"),
        ({"waiting": {"most_minutes": 0}}, "waiting.most_minutes"),
        ({"wating": {}}, "wating"),
        ({"readers": {"demo": "*"}}, "readers"),
    ],
)
def test_what_is_wrong_is_named(over: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(LEAST | over)
    assert path in str(caught.value)


def test_a_token_that_cannot_be_used_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    config = parse({"gateways": {"admin_urls": ["http://a"], "token_file": str(path)}})
    with pytest.raises(ConfigError, match="token_file"):
        read_token(config.gateways)
    for content in (b"", b"\n", b"secret\x00more", b"\xffsecret"):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            read_token(config.gateways)
        assert "secret" not in str(caught.value)
    path.write_text("secret\n")
    assert read_token(config.gateways) == "secret"


def test_tenants_stand_for_users() -> None:
    users = {"alice": 1, "demo": 2}.get
    groups = {"vision": (50, [1, 3]), "demo": (60, [])}.get
    mapped = {"vision": ("@vision",), "public": ("*",), "nobody": ()}

    def who(*tenants: str) -> tuple[bool, set[int], set[int]]:
        found = readers_of(tenants, mapped, find_user=users, find_group=groups)
        return found.everybody, set(found.users), set(found.groups)

    assert who("vision") == (False, {1, 3}, {50})
    assert who("demo") == (False, {2}, {60})
    assert who("demo", "vision") == (False, {1, 2, 3}, {50, 60})
    assert who("nobody", "unheard-of") == (False, set(), set())
    assert who("demo", "public")[0]
    assert who("*")[0]
