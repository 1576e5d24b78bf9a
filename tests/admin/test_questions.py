"""Whatever is asked of the admin port, it answers: never with a failure of its own."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cluster.one_redis import one_redis
from tests.node.process import ADMIN_TOKEN, GatewayProcess, s3_origin_settings
from tests.origins import moto_server


@pytest.fixture(scope="module", params=["alone", "member"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A node over a directory, and a cluster's before an S3 service."""
    folder: Path = tmp_path_factory.mktemp("questions")
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if request.param == "member":
            redis = stack.enter_context(one_redis())
            server = stack.enter_context(moto_server(folder))
            (folder / "cluster-secret").write_text("the nodes know each other by this")
            settings = {
                "default_origin": "cloud",
                "origins": {"cloud": s3_origin_settings(server.url, folder)},
                "cluster": {
                    "redis_url": redis.url,
                    "secret_file": str(folder / "cluster-secret"),
                    "listen": "127.0.0.1:0",
                },
            }
        made = GatewayProcess(folder, settings).start()
        stack.callback(made.kill)
        yield made


def ask(node: GatewayProcess, query: bytes, path: bytes = b"/v1/datasets") -> tuple[int, bytes]:
    """Status and body of what is asked, byte by byte as it stands."""
    parts = urlsplit(node.admin_url)
    head = b"GET %s?%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as line:
        line.sendall(head % (path, query, ADMIN_TOKEN.encode()))
        answer = b"".join(iter(lambda: line.recv(65_536), b""))
    status, _, body = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), body


def encoded(raw: bytes) -> bytes:
    return quote_from_bytes(raw, safe="").encode()


# Bytes that end no line of a request, as they are.
RAW = st.binary(max_size=12).map(
    lambda raw: bytes(each for each in raw if each > 0x20 and each != 0x7F)
)
TEXT = st.one_of(
    RAW,
    st.binary(max_size=12).map(encoded),
    st.text(max_size=12).map(lambda text: encoded(text.encode("utf-8", "surrogatepass"))),
    st.sampled_from(
        [b"bucket", b"..", b".", b"a%2F..", b".feedrack", b"%00", b"%0d%0a", b"x" * 2000]
    ),
)
NAMED = st.builds(lambda bucket, prefix: b"s3://" + bucket + b"/" + prefix, TEXT, TEXT)
QUERY = st.lists(
    st.tuples(
        st.sampled_from([b"dataset", b"after", b"limit", b"job", b"%ff"]),
        st.one_of(NAMED, TEXT, st.integers(-3, 20_000).map(lambda number: b"%d" % number)),
    ),
    max_size=4,
).map(lambda pairs: b"&".join(name + b"=" + value for name, value in pairs))


@settings(max_examples=250, deadline=None)
@given(QUERY)
@example(b"dataset=s3://%ed%b3%bf/")
@example(b"dataset=s3://\xff/")
@example(b"dataset=s3://a%00b/c")
@example(b"after=s3://bucket/%ff")
@example(b"limit=%d9%a3")
@example(b"limit=1_0")
def test_any_question_about_datasets_has_an_answer(node: GatewayProcess, query: bytes) -> None:
    status, body = ask(node, query)

    assert status in (200, 400, 404), body
    if status == 200:
        assert "datasets" in json.loads(body) or "nodes" in json.loads(body)


@settings(max_examples=100, deadline=None)
@given(QUERY)
def test_any_question_about_prefetches_has_an_answer(node: GatewayProcess, query: bytes) -> None:
    status, body = ask(node, query, b"/v1/prefetch")

    assert status in (200, 400), body


@pytest.mark.parametrize(
    "query",
    [
        b"dataset=",
        b"dataset=train/x",
        b"dataset=s3:///x",
        b"dataset=s3://",
        b"limit=0",
        b"limit=10001",
        b"limit=-1",
        b"limit=",
        b"limit=99999999999999999999",
        b"after=",
        b"after=train",
    ],
)
def test_what_cannot_be_understood_is_refused_with_a_reason(
    node: GatewayProcess, query: bytes
) -> None:
    status, body = ask(node, query)

    assert (status, bool(json.loads(body)["error"])) == (400, True)
