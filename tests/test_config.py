"""One file says what a node is; whatever is wrong in it is named by its path."""

import copy
import pickle
import tomllib
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import (
    Bytes,
    Config,
    ConfigError,
    DirectoryOriginConfig,
    S3OriginConfig,
    Secret,
    default_origin,
    load,
    parse,
    parse_listen,
    parse_size,
    read_secret,
    shown,
)

MINIMAL = """
[origins.main]
type = "directory"
path = "/srv/data"
"""

FULL = """
default_origin = "main"
[node]
id = "n1"
rack = "r7"
zone = "z2"
[s3]
listen = "[::1]:9000"
virtual_host_domain = "s3.example"
[s3.limits]
connections = 10
xml_bytes = "1MiB"
[admin]
listen = "127.0.0.1:0"
public_metrics = true
[cache]
path = "/var/cache"
capacity = "1.5GiB"
chunk_size = 1048576
small_object_limit = "64 KiB"
[origins.main]
type = "directory"
path = "/srv/data"
[origins.My-NAS]
type = "directory"
path = "/mnt/nas"
[origins.cloud]
type = "s3"
endpoint_url = "https://s3.example"
access_key = "AK"
secret_key_file = "/etc/key"
addressing = "path"
[buckets.train]
origin = "cloud"
origin_bucket = "train-eu"
freshness_seconds = 0
[buckets."public.data"]
immutable = true
public_read = true
[[tenants]]
name = "demo"
access_key = "demo"
secret_key_file = "/etc/demo"
policy = [{ allow = ["*"], buckets = ["train/*"] }, { deny = ["DeleteObject"] }]
"""


def document(text: str = MINIMAL, **more: Any) -> dict[str, Any]:
    return {**tomllib.loads(text), **more}


def refusal(raw: dict[str, Any], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(raw, environ)
    return str(refused.value)


def test_the_least_that_works_is_one_origin() -> None:
    config = parse(document())
    assert config.origins == {"main": DirectoryOriginConfig(path=Path("/srv/data"))}
    assert config.cache.capacity == 200 * 1024**3
    assert config.cache.chunk_size == 8 * 1024**2
    assert config.cache.small_object_limit == 1024**2
    assert config.s3.listen == "127.0.0.1:9000"
    assert config.admin.listen == "127.0.0.1:9001"
    assert config.node.id


def test_everything_that_is_said_is_heard() -> None:
    config = parse(document(FULL))
    assert (config.node.id, config.node.rack, config.node.zone) == ("n1", "r7", "z2")
    assert config.s3.limits.connections == 10
    assert config.s3.limits.xml_bytes == 1024**2
    assert config.cache.capacity == 3 * 512 * 1024**2
    assert config.cache.small_object_limit == 65_536
    cloud = config.origins["cloud"]
    assert isinstance(cloud, S3OriginConfig)
    assert (cloud.endpoint_url, cloud.addressing) == ("https://s3.example", "path")
    assert config.buckets["train"].freshness_seconds == 0
    assert config.buckets["public.data"].immutable
    assert config.tenants[0].policy[0].buckets == ("train/*",)
    assert config.tenants[0].policy[1].deny == ("DeleteObject",)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nodes": {}}, "nodes: no such setting"),
        ({"node": {"name": "n1"}}, "node.name: no such setting"),
        ({"node": {"rack": ""}}, "node.rack: "),
        ({"node": {"id": "a/b"}}, "node.id: "),
        ({"node": {"id": "a\n"}}, "node.id: "),
        ({"node": {"workers": 0}}, "node.workers: Expected `int` >= 1"),
        ({"s3": {"limits": {"connection": 1}}}, "s3.limits.connection: no such setting"),
        ({"s3": {"limits": {"connections": 0}}}, "s3.limits.connections: "),
        ({"s3": {"limits": {"connections": True}}}, "s3.limits.connections: "),
        ({"s3": {"limits": {"xml_bytes": -1}}}, "s3.limits.xml_bytes: -1 is not a size"),
        ({"s3": {"listen": 9000}}, "s3.listen: "),
        ({"s3": []}, "s3: Expected `object`, got `array`"),
        ({"admin": {"public_metrics": "yes"}}, "admin.public_metrics: "),
        ({"admin": {"token_file": ""}}, "admin.token_file: '' is not a path"),
        ({"admin": {"token_file": "a\0b"}}, "admin.token_file: "),
        ({"cache": {"capacity": "lots"}}, "cache.capacity: 'lots' is not a size"),
        ({"cache": {"capacity": 1.5}}, "cache.capacity: 1.5 is not a size"),
        ({"cache": {"capcity": "1GiB"}}, "cache.capcity: no such setting"),
        ({"log": {"level": "loud"}}, "log.level: Invalid enum value 'loud'"),
        ({"origins": {"main": {"type": "nfs"}}}, "origins.main.type: Invalid value 'nfs'"),
        ({"origins": {"main": {"path": "/x"}}}, "origins.main.type: needed"),
        ({"origins": {"main": {"type": "directory"}}}, "origins.main.path: needed"),
        (
            {"origins": {"a": {"type": "s3"}, "b": {"type": "s3", "kind": 1}}},
            "origins.b.kind: no such setting",
        ),
        (
            {"origins": {"a": {"type": "s3"}, "b": {"type": "s3", "attempts": 11}}},
            "origins.b.attempts: ",
        ),
        ({"origins": {"a": {"type": "s3"}, "b c": {"type": "s3"}}}, "origins.b c: "),
        ({"origins": {"main": "/srv"}}, "origins.main: Expected `object`, got `str`"),
        ({"buckets": {"a": {}, "b": {"freshness_seconds": -1}}}, "buckets.b.freshness_seconds: "),
        ({"buckets": {"b": {"freshness_seconds": float("nan")}}}, "buckets.b.freshness_seconds: "),
        ({"buckets": {"b": {"fresh": 1}}}, "buckets.b.fresh: no such setting"),
        ({"tenants": {"name": "a"}}, "tenants: Expected `array`, got `object`"),
        ({"tenants": [{"name": "a"}]}, "tenants[0].access_key: needed"),
        (
            {"tenants": [{"name": "a", "access_key": "", "secret_key_file": "f"}]},
            "tenants[0].access_key: ",
        ),
        (
            {
                "tenants": [
                    {
                        "name": "a",
                        "access_key": "a",
                        "secret_key_file": "f",
                        "policy": [{"alow": ["*"]}],
                    }
                ]
            },
            "tenants[0].policy[0].alow: no such setting",
        ),
    ],
)
def test_what_is_off_is_named_by_its_path(more: dict[str, Any], message: str) -> None:
    assert refusal(document(**more)).startswith(message)


def tenant(access_key: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": "t", "access_key": access_key, "secret_key_file": "f", **more}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"origins": {}}, "origins: at least one [origins.NAME] is needed"),
        ({"default_origin": "other"}, "default_origin: there is no [origins.other]"),
        ({"buckets": {"b": {"origin": "other"}}}, "buckets.b.origin: there is no [origins.other]"),
        (
            {"origins": {"x": {"type": "s3"}, "y": {"type": "s3"}}, "buckets": {"b": {}}},
            "buckets.b.origin: needed where default_origin is not set",
        ),
        (
            {"tenants": [tenant(), tenant("b"), tenant()]},
            "tenants[2].access_key: another tenant has it already",
        ),
        ({"tenants": [tenant(policy=[{}])]}, "tenants[0].policy[0]: either allow or deny"),
        (
            {"tenants": [tenant(policy=[{"allow": ["*"]}, {"allow": ["*"], "deny": ["*"]}])]},
            "tenants[0].policy[1]: either allow or deny",
        ),
        ({"s3": {"tls_cert_file": "c"}}, "s3: tls_cert_file and tls_key_file go together"),
        ({"s3": {"tls_key_file": "k"}}, "s3: tls_cert_file and tls_key_file go together"),
        ({"cache": {"chunk_size": 0}}, "cache.chunk_size: a multiple of 64KiB"),
        ({"cache": {"chunk_size": "100KiB"}}, "cache.chunk_size: a multiple of 64KiB"),
        ({"cache": {"small_object_limit": "9MiB"}}, "cache.small_object_limit: at most"),
        ({"cache": {"capacity": "63MiB"}}, "cache.capacity: at least eight times"),
        ({"s3": {"listen": "9000"}}, "s3.listen: '9000' is not"),
        ({"admin": {"listen": "localhost:65536"}}, "admin.listen: 'localhost:65536' is not"),
        (
            {"origins": {"x": {"type": "s3", "access_key": "a"}}},
            "origins.x: access_key and secret_key_file go together",
        ),
        (
            {"origins": {"x": {"type": "s3", "secret_key_file": "f"}}},
            "origins.x: access_key and secret_key_file go together",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(more: dict[str, Any], message: str) -> None:
    assert refusal(document(**more)).startswith(message)


def test_what_just_fits_is_accepted() -> None:
    config = parse(
        document(
            cache={"chunk_size": 65_536, "small_object_limit": 65_536, "capacity": 8 * 65_536},
            s3={"tls_cert_file": "c", "tls_key_file": "k"},
            tenants=[tenant(), tenant("b", policy=[{"deny": ["*"]}])],
        )
    )
    assert config.cache.capacity == 524_288


def test_unlisted_buckets_go_to_the_only_origin_or_to_the_one_named() -> None:
    assert default_origin(parse(document())) == "main"
    two = {"x": {"type": "s3"}, "y": {"type": "s3"}}
    assert default_origin(parse({"origins": two})) is None
    assert default_origin(parse({"origins": two, "default_origin": "y"})) == "y"


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (0, 0),
        (8_388_608, 8_388_608),
        ("8388608", 8_388_608),
        (" 12 ", 12),
        ("1B", 1),
        ("8MiB", 8 * 1024**2),
        ("8mib", 8 * 1024**2),
        ("200 GiB", 200 * 1024**3),
        ("1.5TB", 1_500_000_000_000),
        ("1.5KiB", 1536),
        ("0.5B", 0),
        ("3PB", 3 * 10**15),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993 B", 2**53 + 1),
        ("0.1GB", 10**8),
    ],
)
def test_sizes(written: object, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes
    assert type(parse_size(written)) is Bytes


@pytest.mark.parametrize(
    "written",
    [
        -1,
        "-1",
        True,
        1.5,
        None,
        [],
        "",
        "B",
        "MiB",
        "1 M",
        "1MiBs",
        "1e3",
        "1,5GB",
        ".5GB",
        "1.GB",
        "1..5GB",
        "\u0661GB",
        "\u00b2",
        "0x10",
        "1" * 5000,
        "1" * 400 + "B",
        "inf",
        "nanB",
        "1\nMiB2",
    ],
)
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(written)


@given(st.text() | st.text("0123456789.KMGTPiB \u0661", max_size=12))
def test_any_text_is_a_size_or_refused(written: str) -> None:
    with suppress(ValueError):
        assert parse_size(written) >= 0


UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}


@given(st.decimals(0, 10**9, places=3), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(number: Decimal, unit: str, space: str) -> None:
    assert parse_size(f"{number:f}{space}{unit}") == int(number * UNITS[unit])


def test_the_environment_overrides_the_file() -> None:
    config = parse(
        document(FULL),
        {
            "FEEDRACK__S3__LISTEN": "127.0.0.1:0",
            "FEEDRACK__ORIGINS__MAIN__PATH": "/elsewhere",
            "FEEDRACK__CACHE__CAPACITY": "64MiB",
            "FEEDRACK__CACHE__CHUNK_SIZE": "65536",
            "FEEDRACK__S3__LIMITS__CONNECTIONS": "12",
            "FEEDRACK__S3__LIMITS__DRAIN_TIMEOUT_SECONDS": "0.5",
            "FEEDRACK__BUCKETS__TRAIN__IMMUTABLE": "TRUE",
            "FEEDRACK__ADMIN__PUBLIC_METRICS": "false",
            "FEEDRACK__DEFAULT_ORIGIN": "cloud",
            "FEEDRACK_S3__LISTEN": "not ours",
            "PATH": "/bin",
        },
    )
    assert config.s3.listen == "127.0.0.1:0"
    assert config.origins["main"] == DirectoryOriginConfig(path=Path("/elsewhere"))
    assert config.cache.capacity == 64 * 1024**2
    assert config.cache.chunk_size == 65_536
    assert config.s3.limits.connections == 12
    assert config.s3.limits.drain_timeout_seconds == 0.5
    assert config.buckets["train"].immutable
    assert not config.admin.public_metrics
    assert config.default_origin == "cloud"
    # What is not overridden stays as the file says.
    assert config.s3.virtual_host_domain == "s3.example"
    assert config.buckets["train"].origin == "cloud"


def test_the_environment_alone_can_make_a_configuration() -> None:
    config = parse(
        {}, {"FEEDRACK__ORIGINS__NAS__TYPE": "directory", "FEEDRACK__ORIGINS__NAS__PATH": "/n"}
    )
    assert config.origins == {"nas": DirectoryOriginConfig(path=Path("/n"))}


def test_a_word_that_looks_like_a_truth_value_stays_text_where_text_is_wanted() -> None:
    config = parse(document(), {"FEEDRACK__NODE__ID": "true", "FEEDRACK__NODE__RACK": "1"})
    assert (config.node.id, config.node.rack) == ("true", "1")


@pytest.mark.parametrize("part", ["MY_NAS", "my_nas", "My-NAS", "MY-NAS", "my-nas"])
def test_a_name_that_no_variable_can_hold_is_meant_by_its_capitals(part: str) -> None:
    config = parse(document(FULL), {f"FEEDRACK__ORIGINS__{part}__PATH": "/new"})
    assert config.origins["My-NAS"] == DirectoryOriginConfig(path=Path("/new"))
    assert set(config.origins) == {"main", "My-NAS", "cloud"}


def test_a_bucket_with_dots_is_meant_by_underscores() -> None:
    config = parse(document(FULL), {"FEEDRACK__BUCKETS__PUBLIC_DATA__PUBLIC_READ": "false"})
    assert not config.buckets["public.data"].public_read


def test_a_name_that_may_be_two_is_refused_and_an_exact_one_wins() -> None:
    origin = {"type": "directory", "path": "/x"}
    variable = "FEEDRACK__ORIGINS__A_B__PATH"
    assert refusal({"origins": {"a-b": origin, "a.b": origin}}, {variable: "/new"}) == (
        f"{variable}: A_B may mean a-b or a.b"
    )
    config = parse({"origins": {"a-b": origin, "a_b": origin}}, {variable: "/new"})
    assert config.origins["a_b"] == DirectoryOriginConfig(path=Path("/new"))
    assert config.origins["a-b"] == DirectoryOriginConfig(path=Path("/x"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FEEDRACK__S3__LISTN", "x", "s3.listn: no such setting"),
        ("FEEDRACK__S3", "x", "s3: Expected `object`, got `str`"),
        ("FEEDRACK__", "x", "FEEDRACK__: names no setting"),
        ("FEEDRACK__S3__", "x", "FEEDRACK__S3__: names no setting"),
        ("FEEDRACK____LISTEN", "x", "FEEDRACK____LISTEN: names no setting"),
        (
            "FEEDRACK__DEFAULT_ORIGIN__X",
            "x",
            "FEEDRACK__DEFAULT_ORIGIN__X: default_origin is not a table",
        ),
        ("FEEDRACK__TENANTS__0__NAME", "x", "FEEDRACK__TENANTS__0__NAME: tenants is not a table"),
        ("FEEDRACK__CACHE__CAPACITY", "many", "cache.capacity: 'many' is not a size"),
        ("FEEDRACK__ADMIN__PUBLIC_METRICS", "perhaps", "admin.public_metrics: "),
    ],
)
def test_a_wrong_override_is_named(name: str, value: str, message: str) -> None:
    assert refusal(document(FULL), {name: value}).startswith(message)


def test_a_table_and_a_value_cannot_be_given_at_once() -> None:
    said = refusal(document(), {"FEEDRACK__S3": "x", "FEEDRACK__S3__LISTEN": "y"})
    assert said == "FEEDRACK__S3__LISTEN: s3 is not a table"


def test_the_callers_document_stays_as_it_was() -> None:
    raw = document(FULL)
    before = copy.deepcopy(raw)
    parse(raw, {"FEEDRACK__ORIGINS__MAIN__PATH": "/new", "FEEDRACK__S3__LIMITS__CONNECTIONS": "1"})
    parse(raw, {"FEEDRACK__NODE__ID": "x", "FEEDRACK__DEFAULT_ORIGIN": "cloud"})
    assert raw == before


PARTS = st.sampled_from(
    ["S3", "LIMITS", "LISTEN", "ORIGINS", "MAIN", "PATH", "TENANTS", "0", "", "X", "é"]
)


@given(st.dictionaries(st.lists(PARTS, max_size=4).map("__".join), st.text(max_size=5), max_size=5))
def test_any_environment_is_heard_or_refused(variables: dict[str, str]) -> None:
    environ = {f"FEEDRACK__{name}": value for name, value in variables.items()}
    with suppress(ConfigError):
        assert parse(document(FULL), environ).origins


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
SECTIONS = [
    "node",
    "s3",
    "admin",
    "cache",
    "log",
    "origins",
    "buckets",
    "tenants",
    "default_origin",
]


@given(st.dictionaries(st.sampled_from(SECTIONS), JSON, max_size=3))
def test_any_document_is_a_configuration_or_refused(raw: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert parse({**document(), **raw}).origins


def test_a_file_is_loaded_under_the_environment_given(tmp_path: Path) -> None:
    file = tmp_path / "feedrack.toml"
    file.write_text(FULL)
    assert load(file, {}) == parse(document(FULL))
    assert load(file, {"FEEDRACK__NODE__ID": "n9"}).node.id == "n9"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load(tmp_path / "absent.toml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, {})
    file = tmp_path / "feedrack.toml"
    for content in (b"[node", b"\xff\xfe", b"a = 1\na = 2"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"feedrack\.toml: "):
            load(file, {})


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    shown = [repr(secret), str(secret), f"{secret}", repr([secret]), f"{secret!r:>20}"]
    shown.append(str(msgspec.to_builtins({"key": secret}, enc_hook=str)))
    assert "hunter2" not in " ".join(shown)
    assert not hasattr(secret, "__dict__")


def test_a_secret_is_what_the_file_holds_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hunter2\n")
    assert read_secret(file, "tenants[0].secret_key_file").reveal() == "hunter2"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"hunter2\xff"])
def test_an_unreadable_secret_names_the_setting_and_never_the_value(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^tenants\[0\]\.secret_key_file: .*key") as refused:
        read_secret(file, "tenants[0].secret_key_file")
    error: BaseException | None = refused.value
    while error is not None:
        assert "hunter2" not in str(error)
        assert "hunter2" not in repr(vars(error))
        assert "hunter2" not in repr(error.args)
        error = error.__cause__


def test_a_configuration_holds_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hunter2")
    config = parse(document(tenants=[tenant(secret_key_file=str(file))]))
    assert "hunter2" not in repr(config)
    assert b"hunter2" not in pickle.dumps(config)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("localhost:0", ("localhost", 0)),
        (":9000", ("0.0.0.0", 9000)),
        ("0.0.0.0:65535", ("0.0.0.0", 65_535)),
        ("[::1]:9000", ("::1", 9000)),
        ("[::]:9000", ("::", 9000)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_addresses_to_listen_at(listen: str, address: tuple[str, int]) -> None:
    assert parse_listen(listen, "s3.listen") == address


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "9000",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "::1",
        "::1:9000",
        "[::1]",
        "[::1",
        "[::1]9000",
        "[]:9000",
        "[[::1]]:9000",
        "a b:1",
        "h:\u0661",
        "h:" + "9" * 5000,
        "h:1\n",
        "http://h:1",
    ],
)
def test_what_is_no_address_is_refused_by_the_name_of_its_setting(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"^s3\.listen: .* is not"):
        parse_listen(listen, "s3.listen")


@given(st.text() | st.text("[]:0123456789af.", max_size=20))
def test_any_text_is_an_address_or_refused(listen: str) -> None:
    try:
        host, port = parse_listen(listen, "s3.listen")
    except ConfigError:
        return
    assert host
    assert 0 <= port <= 65_535


def test_a_configuration_is_frozen() -> None:
    config = parse(document())
    with pytest.raises(AttributeError):
        config.node = config.node  # type: ignore[misc]
    assert isinstance(config, Config)


def test_the_password_of_an_address_is_not_shown() -> None:
    raw = {
        "origins": {"main": {"type": "directory", "path": "/srv"}},
        "cluster": {"redis_url": "redis://user:hunter2@host:6379/0", "secret_file": "/s"},
    }
    told = shown(parse(raw))["cluster"]["redis_url"]
    assert told == "redis://user:***@host:6379/0"
