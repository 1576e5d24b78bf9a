"""What is recognised by what was proven before is what would have been accepted without it."""

from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.identity import Identity
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.errors import InvalidArgument, InvalidToken, S3Error, SignatureDoesNotMatch
from tests.auth.signing_client import REGION, TENANT, signed_head, with_header


def _authenticator(now: float | None = None) -> Authenticator:
    moment = datetime.now(UTC).timestamp() if now is None else now
    return Authenticator([TENANT], region=REGION, clock_skew_seconds=900, now=lambda: moment)


def _verdict(subject: Authenticator, head: RequestHead) -> Any:
    """What comes of a request, in a form to compare."""
    try:
        identity = subject.authenticate(head)
    except S3Error as error:
        return type(error), error.message, error.fields
    payload = identity.payload
    chunks = payload.chunks and attrgetter("_timestamp", "_scope", "_previous")(payload.chunks)
    return identity.tenant, payload.kind, payload.sha256_hex, chunks


def _heads(expires: int | None) -> list[RequestHead]:
    """Requests of one client that share what can be shared."""
    return [
        signed_head("GET", "/train/a.bin", expires=expires),
        signed_head("HEAD", "/train/b%20c.bin", expires=expires),
        signed_head("GET", "/train", [("list-type", "2"), ("prefix", "a")], expires=expires),
        signed_head("PUT", "/train/a", [("tagging", "")], [("x-amz-meta-a", "b")], expires=expires),
        signed_head("GET", "/train/a.bin", headers=[("Range", "bytes=0-9")], expires=expires),
        signed_head("GET", "/train/a.bin", headers=[("x-amz-meta-b", "a  b")], expires=expires),
    ]


TEXT = st.text(st.sampled_from("aA0%2F/=&;. \t~é\udcff-"), max_size=6)
NAMES = st.sampled_from(
    ("host", "range", "user-agent", "authorization", "date", "x-amz-date", "x-amz-acl")
) | st.sampled_from(("x-amz-content-sha256", "x-amz-security-token", "x-amz-meta-a"))
ANEW = st.sampled_from(["", "X-Amz-Date=20200101T000000Z", "X-Amz-Expires=1", "acl", "a=b"])


@st.composite
def _changes(draw: st.DrawFn) -> Callable[[RequestHead], RequestHead]:
    """One thing done to a request after it was signed; often nothing that matters."""
    name, text, part = draw(NAMES), draw(TEXT), draw(ANEW)
    kind = draw(st.sampled_from(["none", "set", "drop", "repeat", "path", "front", "back", "cut"]))
    signature = draw(st.sampled_from(["", "0", "&X-Amz-Signature=0", "&acl"]))
    at = draw(st.integers(0, 400))

    def change(head: RequestHead) -> RequestHead:
        method, path, query, headers = head.method, head.path, head.query, head.headers
        value = head.header(name)
        match kind:
            case "set":
                return with_header(head, name, text.strip())
            case "drop":
                return with_header(head, name, None)
            case "repeat" if value is not None:
                return RequestHead(method, path, query, (*headers, (name, value)))
            case "path":
                return RequestHead(method, path + text, query, headers)
            case "front":
                return RequestHead(method, path, f"{part}&{query}" if query else part, headers)
            case "back":
                return RequestHead(method, path, query + signature, headers)
            case "cut":
                authorization = head.header("authorization") or ""
                return with_header(head, "authorization", authorization[:at]) if at else head
            case _:
                return head

    return change


@pytest.mark.parametrize("expires", [None, 60])
@given(st.data())
def test_a_verdict_does_not_depend_on_what_was_proven_before(
    expires: int | None, data: st.DataObject
) -> None:
    heads = _heads(expires)
    now = datetime.now(UTC).timestamp()
    warm = _authenticator(now)
    for head in data.draw(st.lists(st.sampled_from(heads), min_size=1, max_size=3)):
        warm.authenticate(head)
    changed = data.draw(st.sampled_from(heads))
    for change in data.draw(st.lists(_changes(), max_size=2)):
        changed = change(changed)
    assert _verdict(warm, changed) == _verdict(_authenticator(now), changed)
    # And what was refused has spoilt nothing.
    for head in heads:
        assert _verdict(warm, head)[0] is TENANT


@pytest.mark.parametrize("expires", [None, 60])
@pytest.mark.parametrize("later_seconds", [-901, -899, 0, 59, 61, 899, 901, 86_400])
def test_the_clock_is_asked_each_time(expires: int | None, later_seconds: int) -> None:
    head = signed_head(expires=expires)
    signed_at = datetime.now(UTC).timestamp()
    now = signed_at
    warm = Authenticator([TENANT], region=REGION, clock_skew_seconds=900, now=lambda: now)
    warm.authenticate(head)
    now = signed_at + later_seconds
    assert _verdict(warm, head) == _verdict(_authenticator(now), head)


@pytest.mark.parametrize("expires", [None, 60])
def test_a_token_is_refused_where_an_empty_one_was_proven(expires: int | None) -> None:
    now = datetime.now(UTC).timestamp()
    warm = _authenticator(now)
    without, token = (
        signed_head(headers=[("x-amz-security-token", value)], expires=expires)
        for value in ("", "session")
    )
    assert warm.authenticate(without).tenant is TENANT
    verdict = _verdict(warm, token)
    assert verdict == _verdict(_authenticator(now), token)
    assert verdict[0] is InvalidToken


def test_a_proven_header_does_not_excuse_a_signature_in_the_query() -> None:
    warm = _authenticator()
    warm.authenticate(signed_head())
    for name in ("X-Amz-Signature", "X-Amz-Algorithm", "X-Amz-Credential"):
        with pytest.raises(InvalidArgument, match="Only one auth mechanism"):
            warm.authenticate(signed_head(query=[(name, "0")]))


def test_what_follows_the_signature_in_a_proven_url_cannot_be_left_out() -> None:
    warm = _authenticator()
    head = signed_head(query=[("versionId", "1")], expires=60)
    rest = head.query.replace("&versionId=1", "").replace("versionId=1&", "")
    turned = RequestHead("GET", head.path, f"{rest}&versionId=1", head.headers)
    assert warm.authenticate(turned).tenant is TENANT
    without = RequestHead("GET", head.path, rest, head.headers)
    for _ in range(2):
        with pytest.raises(SignatureDoesNotMatch):
            warm.authenticate(without)


def test_the_payload_of_a_proven_url_cannot_be_declared_otherwise() -> None:
    warm = _authenticator()
    declared = with_header(signed_head(expires=60), "x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    for _ in range(2):
        assert warm.authenticate(declared).payload.kind == "unsigned"
    with pytest.raises(SignatureDoesNotMatch):
        warm.authenticate(with_header(declared, "x-amz-content-sha256", "0" * 64))


def _remembered(subject: Authenticator) -> int:
    proven = subject._proven
    return len(subject._keys) + len(proven._credentials) + len(proven._presigned)


def test_strangers_are_not_remembered() -> None:
    subject = _authenticator()
    for number in range(20):
        for expires in (None, 60):
            head = signed_head(
                path=f"/train/{number}",
                query=[("number", str(number))],
                headers=[(f"x-amz-meta-{number}", "a")],
                secret="wrong",
                expires=expires,
            )
            with pytest.raises(S3Error):
                subject.authenticate(head)
    assert _remembered(subject) == 0


def test_what_is_remembered_is_bounded() -> None:
    subject = _authenticator()
    for number in range(1_100):
        query = [("number", str(number))]
        assert subject.authenticate(signed_head(query=query, expires=60)).tenant is TENANT
    assert _remembered(subject) <= 1024 + 2
    long = [("x", quote("a" * 3_000))]
    before = _remembered(subject)
    assert subject.authenticate(signed_head(query=long, expires=60)).tenant is TENANT
    assert _remembered(subject) == before


def test_requests_alike_share_one_identity() -> None:
    subject = _authenticator()
    identities: list[Identity] = [
        subject.authenticate(signed_head(path=f"/train/{number}")) for number in range(3)
    ]
    assert identities[1] is identities[2]
