"""Every file in conf/ is a configuration that loads, and tells no setting wrong."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from gateway.config import Config, load

_CONF = sorted((Path(__file__).parents[1] / "conf").glob("*.toml"))


def test_there_are_configurations_to_start_from() -> None:
    assert {path.name for path in _CONF} >= {"feedrack.toml", "nas.toml"}


@pytest.mark.parametrize("path", _CONF, ids=lambda path: path.name)
def test_it_loads(path: Path) -> None:
    config = load(path, {})
    assert config.origins
    assert config.tenants


def test_the_full_one_shows_every_setting_with_its_default() -> None:
    path = next(path for path in _CONF if path.name == "feedrack.toml")
    text = path.read_text("utf-8")
    shown = tomllib.loads(text)
    for section in ("node", "s3", "admin", "cache", "log"):
        kind = Config.__annotations__[section]
        for field in msgspec.structs.fields(kind):
            if field.encode_name != "limits":
                assert field.encode_name in text, f"[{section}] {field.encode_name}"
    defaults = Config()
    limits = msgspec.to_builtins(defaults.s3.limits, enc_hook=int)
    resolved = msgspec.to_builtins(load(path, {}).s3.limits, enc_hook=int)
    assert set(shown["s3"]["limits"]) == set(limits)
    assert resolved == limits
