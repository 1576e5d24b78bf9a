"""The one configuration file: TOML in, frozen Structs out, unknown keys refused by their path.

`FEEDRACK__SECTION__KEY=value` in the environment overrides `[section] key`; deeper tables take
further `__` parts (`FEEDRACK__ORIGINS__MAIN__PATH`). A name in the file that no shell would allow
is meant by its capitals with `_` for `-` and `.`: `FEEDRACK__ORIGINS__MY_NAS__PATH` sets `path` of
an `[origins.My-NAS]`. Secrets come from `*_file` and are read here, once; `repr` and `feedrack
config` never show them.
"""

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from gateway.errors import FeedrackError

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(B|[KMGTP]i?B|)", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", 1)
    for suffix, base in (("IB", 1024), ("B", 1000))
}
_LISTEN = re.compile(
    r"(?:\[(?P<v6>[^\[\]\s]+)\]|(?P<host>[^\[\]:\s]*)):(?P<port>\d{1,5})", re.ASCII
)
_PREFIX = "FEEDRACK__"
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)

REDIS_SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
)

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
Seconds = Annotated[float, Meta(ge=0)]


class ConfigError(FeedrackError):
    """The configuration is wrong; the message names the path of what is."""


class Secret:
    """A secret value that does not show itself."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


class Bytes(int):
    """A size in bytes, written as an integer or as "8MiB", "200 GiB", "1.5TB"."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, by keyword, nothing unknown."""


class NodeConfig(Section, frozen=True):
    id: Name = field(default_factory=lambda: socket.gethostname().split(".")[0] or "node")
    rack: Name = "r1"
    zone: Name = "z1"
    workers: Annotated[int, Meta(ge=1, le=64)] = 1


class LimitsConfig(Section, frozen=True):
    """What one client, and all of them, may cost."""

    connections: Annotated[int, Meta(ge=1)] = 4096
    header_bytes: Annotated[int, Meta(ge=4096)] = 16_384
    xml_bytes: Bytes = Bytes(2 * 1024**2)
    header_timeout_seconds: Seconds = 15.0
    body_timeout_seconds: Seconds = 60.0
    write_timeout_seconds: Seconds = 120.0
    idle_timeout_seconds: Seconds = 75.0
    drain_timeout_seconds: Seconds = 30.0


class S3Config(Section, frozen=True):
    listen: str = "127.0.0.1:9000"
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    virtual_host_domain: str | None = None
    region: str = "us-east-1"
    clock_skew_seconds: Seconds = 900.0
    limits: LimitsConfig = LimitsConfig()


class AdminConfig(Section, frozen=True):
    listen: str = "127.0.0.1:9001"
    token_file: Path | None = None
    public_metrics: bool = False


class CacheConfig(Section, frozen=True):
    path: Path = Path("/var/lib/feedrack")
    capacity: Bytes = Bytes(200 * 1024**3)
    chunk_size: Bytes = Bytes(8 * 1024**2)
    small_object_limit: Bytes = Bytes(1024**2)


class ClusterConfig(Section, frozen=True):
    """Many nodes, one cache (docs/cluster.md)."""

    redis_url: str
    secret_file: Path
    name: Name = "feedrack"
    # Where other nodes ask this one; default: any free port of the S3 port's host.
    listen: str | None = None
    # The address they are given, if it is not the one listened on.
    advertise: str | None = None
    renew_seconds: Annotated[float, Meta(gt=0)] = 1.0
    lease_seconds: Annotated[float, Meta(gt=0)] = 3.0
    # How many replicas of Redis must have a lease's renewal, and a change, before it counts.
    redis_replicas: Annotated[int, Meta(ge=0, le=16)] = 0
    changes_kept: Annotated[int, Meta(ge=1000)] = 100_000
    # How long handing over may take before a node leaves (`POST /v1/drain`).
    drain_seconds: Seconds = 600.0
    # False: one home in the whole cluster for each chunk, whatever rack asks.
    rack_aware: bool = True


class RdmaConfig(Section, frozen=True):
    """Payloads past the sockets, where a device is there (docs/rdma.md)."""

    mode: Literal["auto", "off", "required"] = "auto"
    # Which device, port and GID; else the first active port, and its best RoCE v2 GID.
    device: Name | None = None
    port: Annotated[int, Meta(ge=1, le=255)] | None = None
    gid_index: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    # Of IP headers, both ways: four times the DSCP, and 2 for ECN. Many fabrics know RoCE by 106.
    traffic_class: Annotated[int, Meta(ge=0, le=255)] = 0
    # Registered, and so locked in memory.
    buffers: Bytes = Bytes(64 * 1024**2)
    # Of chunk files, registered where they lie while they are read often; 0: always copied.
    mapped: Bytes = Bytes(256 * 1024**2)
    sessions: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    sessions_per_tenant: Annotated[int, Meta(ge=1, le=65_536)] = 256
    # Pieces of 1 MiB under way on one session.
    depth: Annotated[int, Meta(ge=1, le=256)] = 16
    transfer_timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    idle_seconds: Annotated[float, Meta(gt=0)] = 300.0
    # Other nodes write into them what is asked of them, a chunk each; 0: over HTTP alone.
    peer_buffers: Annotated[int, Meta(ge=0, le=1024)] = 8


class DirectoryOriginConfig(Section, frozen=True, tag="directory", tag_field="type"):
    path: Path


class S3OriginConfig(Section, frozen=True, tag="s3", tag_field="type"):
    endpoint_url: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key_file: Path | None = None
    addressing: Literal["path", "virtual", "auto"] = "auto"
    connections: Annotated[int, Meta(ge=1)] = 128
    connect_timeout_seconds: Seconds = 5.0
    read_timeout_seconds: Seconds = 30.0
    attempts: Annotated[int, Meta(ge=1, le=10)] = 4
    tls_ca_file: Path | None = None


OriginConfig = DirectoryOriginConfig | S3OriginConfig


class BucketConfig(Section, frozen=True):
    origin: Name | None = None
    origin_bucket: str | None = None
    freshness_seconds: Seconds = 60.0
    immutable: bool = False
    public_read: bool = False


class Rule(Section, frozen=True):
    """One line of a tenant's policy: operations allowed, or denied, on buckets or prefixes."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ("*",)


class TenantConfig(Section, frozen=True):
    name: Name
    access_key: Annotated[str, Meta(min_length=1, max_length=128)]
    secret_key_file: Path
    policy: tuple[Rule, ...] = ()


class LogConfig(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class Config(Section, frozen=True):
    default_origin: Name | None = None
    node: NodeConfig = NodeConfig()
    s3: S3Config = S3Config()
    admin: AdminConfig = AdminConfig()
    cache: CacheConfig = CacheConfig()
    cluster: ClusterConfig | None = None
    rdma: RdmaConfig = RdmaConfig()
    log: LogConfig = LogConfig()
    origins: dict[Name, OriginConfig] = field(default_factory=dict)
    buckets: dict[str, BucketConfig] = field(default_factory=dict)
    tenants: tuple[TenantConfig, ...] = ()


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """What `path` says under the environment's overrides. ConfigError names what is off."""
    try:
        with path.open("rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(raw, environ)


def parse(raw: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in a parsed TOML document. ConfigError names the path of what is off."""
    merged = _override(dict(raw), environ or {})
    try:
        config = msgspec.convert(merged, Config, dec_hook=_decode, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_say(str(error), merged)) from error
    _check(config)
    return config


def parse_size(value: object) -> Bytes:
    """8388608, "8MiB", "1.5 GB" as bytes. ValueError where it is neither."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Bytes(value)
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is not None:
            return Bytes(Fraction(match[1]) * _UNITS[match[2].upper()])
    raise ValueError(f'{value!r} is not a size such as 8388608, "8MiB" or "200GiB"')


def read_secret(path: Path, where: str) -> Secret:
    """The secret in a file, line end cut. ConfigError names the setting, never the value."""
    try:
        value = path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # Not chained: that error carries what the file holds.
        raise ConfigError(f"{where}: {path} is not UTF-8 text") from None
    if not value:
        raise ConfigError(f"{where}: {path} is empty")
    return Secret(value)


def parse_listen(value: str, where: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port). ConfigError names the setting."""
    match = _LISTEN.fullmatch(value)
    if match is None or int(match["port"]) > 65_535:
        raise ConfigError(f'{where}: {value!r} is not "host:port" or "[v6]:port"')
    host = match["v6"] or match["host"] or "0.0.0.0"  # noqa: S104 - an empty host means all
    return host, int(match["port"])


def _decode(kind: type, value: object) -> object:
    if kind is Bytes:
        return parse_size(value)
    if kind is Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"{value!r} is not a path")
        return Path(value)
    raise NotImplementedError(kind)


def _override(raw: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    for name in sorted(environ):
        if not name.startswith(_PREFIX):
            continue
        *parents, last = name.removeprefix(_PREFIX).split("__")
        table: Any = raw
        for part in parents:
            key = _meant(part, table, name)
            inner = table.get(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name}: {key} is not a table")
            # A copy, so that the caller's document stays as it was.
            table[key] = dict(inner)
            table = table[key]
        table[_meant(last, table, name)] = environ[name]
    return raw


def _meant(part: str, table: Mapping[str, Any], variable: str) -> str:
    """The key of `table` that one part of a variable's name stands for, or else a new one."""
    if not part:
        raise ConfigError(f"{variable}: names no setting")
    for exact in (part, part.lower()):
        if exact in table:
            return exact
    alike = [key for key in table if _flat(key) == _flat(part)]
    if len(alike) > 1:
        raise ConfigError(f"{variable}: {part} may mean {' or '.join(sorted(alike))}")
    return alike[0] if alike else part.lower()


def _flat(name: str) -> str:
    return name.lower().translate({ord("-"): "_", ord("."): "_"})


def _check(config: Config) -> None:
    if not config.origins:
        raise ConfigError("origins: at least one [origins.NAME] is needed")
    if config.default_origin is not None and config.default_origin not in config.origins:
        raise ConfigError(f"default_origin: there is no [origins.{config.default_origin}]")
    for name, bucket in config.buckets.items():
        if bucket.origin is not None and bucket.origin not in config.origins:
            raise ConfigError(f"buckets.{name}.origin: there is no [origins.{bucket.origin}]")
        if bucket.origin is None and default_origin(config) is None:
            raise ConfigError(f"buckets.{name}.origin: needed where default_origin is not set")
    keys = [tenant.access_key for tenant in config.tenants]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise ConfigError(f"tenants[{number}].access_key: another tenant has it already")
    for number, tenant in enumerate(config.tenants):
        for line, rule in enumerate(tenant.policy):
            if bool(rule.allow) == bool(rule.deny):
                raise ConfigError(f"tenants[{number}].policy[{line}]: either allow or deny")
    if (config.s3.tls_cert_file is None) != (config.s3.tls_key_file is None):
        raise ConfigError("s3: tls_cert_file and tls_key_file go together")
    cache = config.cache
    if cache.chunk_size < 65_536 or cache.chunk_size % 65_536:
        raise ConfigError("cache.chunk_size: a multiple of 64KiB is needed")
    if cache.small_object_limit > cache.chunk_size:
        raise ConfigError("cache.small_object_limit: at most cache.chunk_size")
    if config.rdma.buffers < 4 * 1024**2:
        raise ConfigError("rdma.buffers: at least 4MiB")
    if cache.capacity < 8 * cache.chunk_size:
        raise ConfigError("cache.capacity: at least eight times cache.chunk_size")
    if config.cluster is not None:
        _check_cluster(config.cluster)
    for where, listen in (("s3.listen", config.s3.listen), ("admin.listen", config.admin.listen)):
        parse_listen(listen, where)
    for name, origin in config.origins.items():
        if isinstance(origin, S3OriginConfig) and (origin.access_key is None) != (
            origin.secret_key_file is None
        ):
            raise ConfigError(f"origins.{name}: access_key and secret_key_file go together")


def _check_cluster(cluster: ClusterConfig) -> None:
    if not cluster.redis_url.startswith(REDIS_SCHEMES):
        raise ConfigError(f"cluster.redis_url: one of {', '.join(REDIS_SCHEMES)} is needed")
    if cluster.redis_replicas and "+cluster://" in cluster.redis_url:
        raise ConfigError("cluster.redis_replicas: cannot be asked of a Redis Cluster")
    if cluster.lease_seconds < 2 * cluster.renew_seconds:
        raise ConfigError("cluster.lease_seconds: at least twice cluster.renew_seconds")
    for name in ("listen", "advertise"):
        value = getattr(cluster, name)
        if value is not None:
            parse_listen(value, f"cluster.{name}")


def s3_url(config: Config, port: int) -> str:
    """Where S3 is served, once the port is known."""
    scheme = "https" if config.s3.tls_cert_file is not None else "http"
    return f"{scheme}://{config.s3.listen.rpartition(':')[0]}:{port}"


def admin_url(config: Config, port: int) -> str:
    """Where the admin port is, once it is known."""
    return f"http://{config.admin.listen.rpartition(':')[0]}:{port}"


def plain(config: Config) -> dict[str, Any]:
    """The configuration as TOML or JSON can hold it, in a form that `parse` takes: sizes as
    integers, paths as text, what is not set left out."""
    built: dict[str, Any] = _without_nulls(
        msgspec.to_builtins(
            config, enc_hook=lambda value: int(value) if isinstance(value, int) else str(value)
        )
    )
    return built


def shown(config: Config) -> dict[str, Any]:
    """As `plain`, for people to look at: without the password that an address may carry."""
    built = plain(config)
    cluster = built.get("cluster")
    if cluster is not None:
        cluster["redis_url"] = re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:***@", cluster["redis_url"])
    return built


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def default_origin(config: Config) -> str | None:
    """The origin of unlisted buckets: the one named, or the only one there is."""
    if config.default_origin is not None:
        return config.default_origin
    return next(iter(config.origins)) if len(config.origins) == 1 else None


def _say(message: str, raw: Mapping[str, Any]) -> str:
    """msgspec's "… - at `$.cache.capacity`" turned to "cache.capacity: …"."""
    text, _, place = message.partition(" - at `")
    path = place.removeprefix("key` in `").rstrip("`").lstrip("$.")
    # Of a table with names for keys msgspec says neither the name nor the wrong key.
    section, named, rest = path.partition("[...]")
    if named or place.startswith("key` in `"):
        path = f"{section}.{_culprit(section, raw)}{rest}"
    for pattern, complaint in ((_UNKNOWN, "no such setting"), (_MISSING, "needed")):
        match = pattern.fullmatch(text)
        if match is not None:
            path, text = ".".join(filter(None, (path, match[1]))), complaint
    return f"{path or 'configuration'}: {text}"


def _culprit(section: str, raw: Mapping[str, Any]) -> str:
    """The first entry of a table of named entries that is wrong."""
    for name, entry in raw[section].items():
        try:
            msgspec.convert({section: {name: entry}}, Config, dec_hook=_decode, strict=False)
        except msgspec.ValidationError:
            return str(name)
    raise AssertionError("unreachable")
