"""Every file in conf/ is a configuration that loads, and tells no setting wrong."""

import re
from pathlib import Path

import msgspec
import pytest

from gateway.config import (
    AdminConfig,
    BucketConfig,
    CacheConfig,
    Config,
    DirectoryOriginConfig,
    LimitsConfig,
    LogConfig,
    NodeConfig,
    RdmaConfig,
    S3Config,
    S3OriginConfig,
    TenantConfig,
    load,
)

_CONF = sorted((Path(__file__).parents[1] / "conf").glob("*.toml"))
_FULL = Path(__file__).parents[1] / "conf" / "feedrack.toml"


def test_there_are_configurations_to_start_from() -> None:
    assert {path.name for path in _CONF} >= {"feedrack.toml", "nas.toml"}


@pytest.mark.parametrize("path", _CONF, ids=lambda path: path.name)
def test_it_loads(path: Path) -> None:
    config = load(path, {})
    assert config.origins
    assert config.tenants


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (NodeConfig, "[node]"),
        (S3Config, "[s3]"),
        (LimitsConfig, "[s3.limits]"),
        (AdminConfig, "[admin]"),
        (CacheConfig, "[cache]"),
        (RdmaConfig, "[rdma]"),
        (LogConfig, "[log]"),
        (S3OriginConfig, "[origins.cloud]"),
        (DirectoryOriginConfig, "[origins.nas]"),
        (BucketConfig, "[buckets.train]"),
        (TenantConfig, "[[tenants]]"),
    ],
)
def test_the_full_one_shows_every_setting_of_a_section(kind: type, heading: str) -> None:
    """As a line of its section, set or commented out."""
    section = _FULL.read_text("utf-8").split(f"\n{heading}\n")[1].split("\n[")[0]
    for field in msgspec.structs.fields(kind):
        if field.name != "limits":
            assert re.search(rf"^(# )?{field.encode_name} = ", section, re.MULTILINE), field.name


def test_the_full_one_shows_defaults_where_it_does_not_say_otherwise() -> None:
    """Uncommented lines without a remark of another default resolve to what is built in."""
    shown, built_in = load(_FULL, {}), Config()
    assert shown.s3.limits == built_in.s3.limits
    assert shown.node.workers == built_in.node.workers
    assert shown.s3.region == built_in.s3.region
    assert shown.s3.clock_skew_seconds == built_in.s3.clock_skew_seconds
    assert shown.admin.listen == built_in.admin.listen
    assert shown.cache == built_in.cache
    assert shown.log == built_in.log
    assert shown.rdma == built_in.rdma
    cloud = shown.origins["cloud"]
    assert isinstance(cloud, S3OriginConfig)
    for name in ("connections", "connect_timeout_seconds", "read_timeout_seconds", "attempts"):
        assert getattr(cloud, name) == getattr(S3OriginConfig(), name)
    assert shown.buckets["train"] == BucketConfig(origin="cloud", origin_bucket="train")
