"""Requests signed by hand carry the very signature that botocore would give them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gateway.tiers.origin_s3.relay import encoded_query
from gateway.tiers.origin_s3.signing import Keys, signed_head

NOW = datetime(2026, 11, 29, 21, 5, 9, tzinfo=UTC)


def fields(head: bytes) -> dict[str, str]:
    _, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return dict(line.split(": ", 1) for line in lines)


def botocores(method: str, url: str, headers: Mapping[str, str], keys: Keys, region: str) -> str:
    request = AWSRequest(method=method, url=url, headers=dict(headers))
    with patch("botocore.auth.get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
        S3SigV4Auth(credentials, "s3", region).add_auth(request)
    return str(request.headers["Authorization"])


SAFE = st.text("abcXYZ019-_.~/", max_size=30)


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    path=SAFE,
    version=st.none() | st.text(min_size=1, max_size=20),
    headers=st.dictionaries(
        st.sampled_from(["range", "if-match", "x-amz-checksum-mode", "x-amz-request-payer"]),
        st.text("abc 019=-\"'", max_size=20).map(str.strip),
    ),
    keys=st.builds(
        Keys,
        st.text("ABC123", min_size=1, max_size=10),
        st.text(st.characters(min_codepoint=33, max_codepoint=0x7E), min_size=1, max_size=40),
        st.none() | st.text("abc/+=", min_size=1, max_size=20),
    ),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
)
def test_the_signature_is_botocores(
    method: str,
    path: str,
    version: str | None,
    headers: dict[str, str],
    keys: Keys,
    region: str,
) -> None:
    host = "bucket.s3.example.com"
    query = "" if version is None else encoded_query((("versionId", version),))
    head = signed_head(
        method, f"/{path}", query, {"host": host, **headers}, keys=keys, region=region, now=NOW
    )
    target = f"/{path}?{query}" if query else f"/{path}"
    assert head.startswith(f"{method} {target} HTTP/1.1\r\n".encode())
    sent = fields(head)
    assert sent["host"] == host
    assert sent.get("x-amz-security-token") == keys.token
    assert headers.items() <= sent.items()
    assert sent["authorization"] == botocores(
        method, f"https://{host}{target}", headers, keys, region
    )


def test_a_line_break_in_a_value_is_refused() -> None:
    for value in ("a\r\nb: c", "a\nb", "a\rb"):
        with pytest.raises(ValueError, match="line break"):
            signed_head(
                "GET", "/k", "", {"if-match": value}, keys=Keys("a", "s"), region="r", now=NOW
            )
