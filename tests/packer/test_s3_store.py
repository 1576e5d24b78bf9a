"""The small S3 client: signed as botocore signs, patient with trouble, suspicious of answers."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from feedrack.profile import Credentials
from feedrack.signing import Signer
from packer.stores.choice import open_store, parse_dataset
from packer.stores.protocol import (
    ConditionFailed,
    ObjectMissing,
    ObjectUnreadable,
    StoreError,
)
from packer.stores.s3 import S3Store, iso_ms, parse_listing
from packer.stores.s3_client import S3Client, Target, encoded_key, find_target
from tests.packer.conftest import Bucket

MOMENT = 1_790_000_000.0


def target(host: str = "h:1", token: str | None = None) -> Target:
    return Target(False, host, "/b", "eu-west-1", lambda: Credentials("AK", "SK", token), None)


@pytest.mark.parametrize("token", [None, "session"])
@given(key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_signatures_are_those_of_botocore(token: str | None, key: str) -> None:
    path = "/b/" + encoded_key(key)
    query = "list-type=2&prefix=a%2Fb"
    headers = {"x-amz-meta-a": "b  c", "x-feedrack-packs": "bypass"}
    at = target(token=token)
    signer = Signer(at.host, at.region, at.credentials, lambda: MOMENT)
    ours = signer.headers("PUT", path, query, headers, "hash")
    request = AWSRequest("PUT", f"http://h:1{path}?{query}", headers)
    request.context["timestamp"] = ours["x-amz-date"]
    request.headers["X-Amz-Date"] = ours["x-amz-date"]
    request.headers["X-Amz-Content-SHA256"] = "hash"
    auth = S3SigV4Auth(BotocoreCredentials("AK", "SK", token), "s3", "eu-west-1")
    if token is not None:
        request.headers["X-Amz-Security-Token"] = token
    text = auth.string_to_sign(request, auth.canonical_request(request))
    assert ours["authorization"].endswith(f"Signature={auth.signature(text, request)}")


@given(body=st.binary(max_size=200))
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    try:
        entries, _ = parse_listing(body)
    except StoreError:
        return
    assert entries == []


@pytest.mark.parametrize(
    ("said", "milliseconds"),
    [
        ("2026-01-02T03:04:05.678Z", 1767323045678),
        ("2026-01-02T03:04:05Z", 1767323045000),
        ("2026-01-02T03:04:05.678000+00:00", 1767323045678),
    ],
)
def test_times_of_listings(said: str, milliseconds: int) -> None:
    assert iso_ms(said) == milliseconds


@pytest.mark.parametrize("url", ["", "b/p", "s3:/b", "s3://", "s3:///p", "http://b/p"])
def test_what_is_no_dataset(url: str) -> None:
    with pytest.raises(ValueError, match="not s3"):
        parse_dataset(url)


def test_datasets() -> None:
    assert parse_dataset("s3://b") == ("b", "")
    assert parse_dataset("s3://b/p/?#") == ("b", "p/?#")


def test_endpoints_are_found_as_every_tool_finds_them(
    monkeypatch: pytest.MonkeyPatch, keys_of_aws: None
) -> None:
    assert find_target("b", "http://h:1", None)[:3] == (False, "h:1", "/b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other")
    assert find_target("b", None, None)[:3] == (True, "other", "/b")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    aws = find_target("bucket", None, None)
    assert (aws.tls, aws.host, aws.base) == (True, "bucket.s3.eu-west-1.amazonaws.com", "")
    with pytest.raises(StoreError):
        find_target("b", None, "no-such-profile")
    with pytest.raises(StoreError):
        open_store("b", "file://elsewhere/x", None)


@contextmanager
def scripted(*answers: bytes) -> Iterator[tuple[S3Store, list[str]]]:
    """A server that gives these answers in turn, and hangs up after an empty one."""
    asked: list[str] = []
    remaining = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            answer = remaining.pop(0)
            self.wfile.write(answer)
            self.close_connection = not answer or b"chop" in answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with closing(S3Store("b", target(f"127.0.0.1:{server.server_port}"))) as store:
            try:
                yield store, asked
            finally:
                server.shutdown()
                thread.join()


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return head.encode() + body


OK = answer(200, b"data", etag='"e"')
CHUNKED = (
    b'HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\netag: "e"\r\n\r\n'
    b"2\r\nda\r\n2;x=y\r\nta\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    "trouble",
    [b"", answer(503), answer(500, b"<Error/>"), b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nchop",
     b"nonsense chop\r\n\r\n"],
)  # fmt: skip
def test_trouble_is_met_with_patience(trouble: bytes) -> None:
    with scripted(trouble, OK, CHUNKED) as (store, asked):
        assert store.get("k").data == b"data"
        assert store.get("k").data == b"data"
        assert asked == ["/b/k"] * 3


def test_provisional_answers_are_passed_over() -> None:
    with scripted(b"HTTP/1.1 100 Continue\r\n\r\n" + OK) as (store, _):
        assert store.get("k").etag == "e"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (answer(404, b"<Error><Code>NoSuchKey</Code></Error>"), ObjectMissing),
        (answer(404, b"<Error><Code>NoSuchBucket</Code></Error>"), StoreError),
        (answer(412), ConditionFailed),
        (answer(403, b"<Error><Code>InvalidObjectState</Code></Error>"), ObjectUnreadable),
        (answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"), StoreError),
        (answer(301, b"", x_amz_bucket_region="eu-west-9"), StoreError),
    ],
)
def test_refusals_are_told_apart(said: bytes, kind: type[StoreError]) -> None:
    with scripted(said) as (store, _), pytest.raises(StoreError) as caught:
        store.get("k")
    assert type(caught.value) is kind
    if b"eu-west-9" in said:
        assert "AWS_REGION" in str(caught.value)


def test_a_range_that_is_answered_with_the_whole_is_refused() -> None:
    with scripted(OK) as (store, _), pytest.raises(StoreError, match="another range"):
        store.read("k", 0, 4)


def test_large_files_go_up_in_parts_and_come_back(s3_bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 4096 * 40)
    sent: list[int] = []
    s3_bucket.store.put_file("k", path, sent.append, {"content-type": "x/y"})
    assert sum(sent) == path.stat().st_size
    with s3_bucket.store.open("k") as stream:
        assert stream.read() == path.read_bytes()
    assert s3_bucket.store.head("k").headers["content-type"] == "x/y"


@pytest.mark.parametrize("size_bytes", [10, 20 * 1024**2])
def test_a_file_takes_no_objects_place_unless_it_may(
    bucket: Bucket, tmp_path: Path, size_bytes: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size_bytes))
    bucket.store.put_file("k", path, lambda _: None, if_absent=True)
    path.write_bytes(b"x" * size_bytes)
    with pytest.raises(ConditionFailed):
        bucket.store.put_file("k", path, lambda _: None, if_absent=True)
    assert bucket.store.get("k").data == bytes(size_bytes)
    bucket.store.put_file("k", path, lambda _: None)
    assert bucket.store.get("k").data == b"x" * size_bytes


def test_an_upload_that_fails_is_ended(s3_bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(40 * 1024**2))

    def stop(_: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        s3_bucket.store.put_file("k", path, stop)
    assert isinstance(s3_bucket.store, S3Store)
    client: S3Client = s3_bucket.store._client
    uploads = client.ask("GET", None, (("uploads", ""),)).body
    assert b"<UploadId>" not in uploads


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\0b"])
def test_a_header_out_of_an_index_adds_no_other_header(s3_bucket: Bucket, value: str) -> None:
    with pytest.raises(StoreError, match="line break"):
        s3_bucket.store.put("k", b"x", headers={"content-type": value})
