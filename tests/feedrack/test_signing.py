"""What is signed here is signed as botocore signs it."""

import time
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from feedrack.endpoint import Access, find_endpoint
from feedrack.profile import Credentials, Profile
from feedrack.signing import EMPTY_SHA256, Signer, encode_query

SECRET = "not/so+secret=ÄÖÜ"
NOW = datetime(2026, 5, 24, 1, 2, 3, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
VALUES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=20)
HEADERS = st.dictionaries(st.sampled_from(["x-amz-meta-a", "x-feedrack-packs", "range"]), VALUES)


@given(
    st.sampled_from(["GET", "POST", "HEAD"]),
    TEXT,
    st.dictionaries(TEXT, st.text(max_size=10), max_size=4),
    HEADERS,
    st.sampled_from([None, "a/session=token"]),
    st.sampled_from(["eu-central-1", "us-east-1"]),
)
def test_a_signature_is_botocores(
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    token: str | None,
    region: str,
) -> None:
    path = f"/train/{quote(key, safe='/-_.~')}"
    text = encode_query(tuple(query.items()))
    signer = Signer(
        "127.0.0.1:9000", region, lambda: Credentials("demo", SECRET, token), NOW.timestamp
    )
    signed = signer.headers(method, path, text, headers, EMPTY_SHA256)
    again = signer.headers(method, path, text, headers, EMPTY_SHA256)
    assert signed == again
    assert signed["authorization"] == _by_botocore(method, f"{path}?{text}", signed, token, region)


def _by_botocore(
    method: str, target: str, signed: dict[str, str], token: str | None, region: str
) -> str:
    url = f"http://127.0.0.1:9000{target}"
    request = AWSRequest(method, url)
    names = signed["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    for name in names:
        if name not in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            request.headers[name] = signed[name]
    auth = S3SigV4Auth(BotoCredentials("demo", SECRET, token), "s3", region)
    # botocore's own clock is not to be set: its steps are taken one by one.
    request.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["X-Amz-Content-SHA256"] = EMPTY_SHA256
    if token:
        request.headers["X-Amz-Security-Token"] = token
    canonical = auth.canonical_request(request)
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    scope = auth.scope(request)
    return (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={signature}"
    )


def test_a_new_day_has_a_new_key() -> None:
    moments = [NOW.timestamp(), NOW.timestamp() + 86_400]
    signer = Signer("h", "r", lambda: Credentials("a", "b"), lambda: moments[0])
    first = signer.headers("GET", "/", "", {}, EMPTY_SHA256)
    moments.pop(0)
    fresh = Signer("h", "r", lambda: Credentials("a", "b"), lambda: moments[0])
    assert signer.headers("GET", "/", "", {}, EMPTY_SHA256) == fresh.headers(
        "GET", "/", "", {}, EMPTY_SHA256
    )
    assert first["x-amz-date"] == "20260524T010203Z"


def test_without_credentials_nothing_is_signed() -> None:
    signer = Signer("h", "r", None, time.time)
    assert signer.headers("GET", "/", "", {"range": "bytes=0-"}, EMPTY_SHA256) == {
        "host": "h",
        "range": "bytes=0-",
    }


@pytest.mark.parametrize(
    ("url", "host", "port", "header", "base"),
    [
        ("http://127.0.0.1:9000", "127.0.0.1", 9000, "127.0.0.1:9000", "/train"),
        ("https://s3.example/base/", "s3.example", 443, "s3.example", "/base/train"),
        ("http://[::1]:80", "::1", 80, "[::1]", "/train"),
        (None, "train.s3.us-east-1.amazonaws.com", 443, "train.s3.us-east-1.amazonaws.com", ""),
    ],
)
def test_a_bucket_is_addressed_as_s3_tools_do(
    url: str | None, host: str, port: int, header: str, base: str
) -> None:
    found = find_endpoint("train", Access(endpoint_url=url), Profile(None, {}))
    assert (found.host, found.port, found.host_header, found.base) == (host, port, header, base)
    assert found.path("a b/ü") == f"{base}/a%20b/%C3%BC"
    assert found.path(None) == (base or "/")
