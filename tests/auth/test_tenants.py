"""Tenants come with their secrets, and never show them."""

from pathlib import Path

import pytest

from gateway.auth.tenants import load_tenants
from gateway.config import Config, ConfigError, Rule, parse


def config(*files: Path) -> Config:
    tenants = [
        {
            "name": f"t{number}",
            "access_key": f"k{number}",
            "secret_key_file": str(file),
            "policy": [{"allow": ["*"]}],
        }
        for number, file in enumerate(files)
    ]
    return parse({"origins": {"main": {"type": "directory", "path": "/srv"}}, "tenants": tenants})


def test_a_tenant_has_the_secret_of_its_file_and_its_rules(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("tops3cret\n")
    (tenant,) = load_tenants(config(file))
    assert (tenant.name, tenant.access_key) == ("t0", "k0")
    assert tenant.secret.reveal() == "tops3cret"
    assert tenant.rules == (Rule(allow=("*",)),)
    assert "tops3cret" not in repr(tenant)


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff"])
def test_a_secret_that_cannot_be_read_is_named_by_its_setting(
    tmp_path: Path, content: str | bytes | None
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("secret")
    if content is not None:
        bad.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=r"^tenants\[1\]\.secret_key_file: "):
        load_tenants(config(good, bad))
