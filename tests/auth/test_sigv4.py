"""Signatures are accepted when botocore or AWS made them, and refused when anything is off."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.auth.identity import ANONYMOUS
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.auth.tenants import Tenant
from gateway.config import Secret
from gateway.errors import (
    AccessDenied,
    AuthorizationHeaderMalformed,
    AuthorizationQueryParametersError,
    InvalidAccessKeyId,
    InvalidArgument,
    InvalidRequest,
    InvalidToken,
    RequestTimeTooSkewed,
    S3Error,
    SignatureDoesNotMatch,
)
from gateway.errors import NotImplemented as NotImplementedS3
from tests.auth.signing_client import REGION, SECRET, TENANT, signed_head, with_header

AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
AWS_TENANT = Tenant("aws", "AKIAIOSFODNN7EXAMPLE", Secret(AWS_SECRET))
AWS_NOW = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
EMPTY_SHA256 = hashlib.sha256().hexdigest()


def authenticator(**changes: object) -> Authenticator:
    return Authenticator([TENANT], region=REGION, clock_skew_seconds=900, **changes)  # type: ignore[arg-type]


def aws(now: float = AWS_NOW) -> Authenticator:
    return Authenticator([AWS_TENANT], region="us-east-1", clock_skew_seconds=900, now=lambda: now)


def aws_head(
    target: str,
    signature: str,
    *headers: tuple[str, str],
    method: str = "GET",
    sha256_hex: str = EMPTY_SHA256,
) -> RequestHead:
    """A request of AWS's documentation, "Signature Calculations: Header-Based Authentication"."""
    path, _, query = target.partition("?")
    signed = sorted(
        [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", sha256_hex),
            ("x-amz-date", "20130524T000000Z"),
            *headers,
        ]
    )
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={';'.join(name for name, _ in signed)},Signature={signature}"
    )
    return RequestHead(method, path, query, (*signed, ("authorization", authorization)))


AWS_EXAMPLES = {
    "get with a range": aws_head(
        "/test.txt",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ("range", "bytes=0-9"),
    ),
    "put with a dollar": aws_head(
        "/test$file.text",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ("date", "Fri, 24 May 2013 00:00:00 GMT"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        method="PUT",
        sha256_hex=hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
    ),
    "get of a subresource": aws_head(
        "/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    ),
    "list": aws_head(
        "/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    ),
}
AWS_PRESIGNED = RequestHead(
    "GET",
    "/test.txt",
    "X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    (("host", "examplebucket.s3.amazonaws.com"),),
)


@pytest.mark.parametrize("name", AWS_EXAMPLES)
def test_the_examples_of_aws_are_accepted(name: str) -> None:
    assert aws().authenticate(AWS_EXAMPLES[name]).tenant is AWS_TENANT


def test_the_presigned_example_of_aws_is_accepted_until_it_expires() -> None:
    identity = aws(AWS_NOW + 86_400).authenticate(AWS_PRESIGNED)
    assert identity.tenant is AWS_TENANT
    assert identity.payload.kind == "unsigned"
    with pytest.raises(AccessDenied, match="expired") as caught:
        aws(AWS_NOW + 86_401).authenticate(AWS_PRESIGNED)
    assert caught.value.fields["Expires"] == "2013-05-25T00:00:00Z"


def test_a_presigned_request_from_the_future_is_not_valid_yet() -> None:
    assert aws(AWS_NOW - 899).authenticate(AWS_PRESIGNED).tenant is AWS_TENANT
    with pytest.raises(AccessDenied, match="not valid yet"):
        aws(AWS_NOW - 901).authenticate(AWS_PRESIGNED)


# What clients send: keys of any text, header values of any visible text with any blanks.
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
PAIRS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: not name.lower().startswith("x-amz-")),
    st.text(max_size=20),
    max_size=4,
)
VALUES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zs", "Zl", "Zp"]) | st.sampled_from(" \t"),
    max_size=20,
)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["x-amz-meta-a", "x-amz-meta-b", "Cache-Control", "Range"]), VALUES),
    max_size=5,
)


@given(KEYS, PAIRS, HEADERS, st.sampled_from(["GET", "PUT", "POST"]), st.none() | st.just(60))
def test_whatever_botocore_signs_is_accepted(
    key: str,
    pairs: dict[str, str],
    headers: list[tuple[str, str]],
    method: str,
    expires: int | None,
) -> None:
    path = f"/train/{quote(key, safe='/~')}"
    head = signed_head(method, path, list(pairs.items()), headers, expires=expires)
    subject = authenticator()
    assert subject.authenticate(head).tenant is TENANT
    # Once more by way of what has been remembered.
    assert subject.authenticate(head).tenant is TENANT


def test_a_repeated_parameter_is_signed_with_all_its_values() -> None:
    head = signed_head(query=[("tag", "b"), ("tag", "a"), ("tag-", "0")])
    assert authenticator().authenticate(head).tenant is TENANT


def test_two_clients_of_one_tenant_are_told_apart_by_their_signed_headers() -> None:
    subject = authenticator()
    for headers in ([("range", "bytes=0-1")], [], [("cache-control", "no-cache")]):
        for _ in range(2):
            assert subject.authenticate(signed_head(headers=headers)).tenant is TENANT


Mutation = Callable[[RequestHead], RequestHead]


def _header(name: str, change: Callable[[str], str | None]) -> Mutation:
    return lambda head: with_header(head, name, change(head.header(name) or ""))


MUTATIONS: dict[str, Mutation] = {
    "method": lambda head: RequestHead("DELETE", head.path, head.query, head.headers),
    "path": lambda head: RequestHead(head.method, head.path + "x", head.query, head.headers),
    "slash": lambda head: RequestHead(head.method, "/" + head.path, head.query, head.headers),
    "query value": lambda head: RequestHead(
        head.method, head.path, head.query.replace("=photos", "=phot0s"), head.headers
    ),
    "query added": lambda head: RequestHead(
        head.method, head.path, f"acl&{head.query}", head.headers
    ),
    "host": _header("host", lambda _: "127.0.0.1:9001"),
    "host gone": _header("host", lambda _: None),
    "range": _header("range", lambda value: value + "0"),
    "range gone": _header("range", lambda _: None),
    "metadata": _header("x-amz-meta-a", lambda value: value.upper()),
    "metadata gone": _header("x-amz-meta-a", lambda _: None),
    "metadata added": _header("x-amz-meta-new", lambda _: "1"),
    "metadata repeated": lambda head: RequestHead(
        head.method, head.path, head.query, (*head.headers, ("x-amz-meta-a", "b"))
    ),
}
ONLY_HEADER: dict[str, Mutation] = {
    "payload": _header("x-amz-content-sha256", lambda _: hashlib.sha256(b"x").hexdigest()),
    "payload unsigned": _header("x-amz-content-sha256", lambda _: "UNSIGNED-PAYLOAD"),
    "payload gone": _header("x-amz-content-sha256", lambda _: None),
    "date": _header("x-amz-date", lambda value: f"{value[:14]}{(int(value[14]) + 1) % 10}Z"),
    "date gone": _header("x-amz-date", lambda _: None),
    "signature": _header("authorization", lambda value: value[:-1] + "0f"[value[-1] == "0"]),
    "signature short": _header("authorization", lambda value: value[:-1]),
    "signature long": _header("authorization", lambda value: value + "0"),
    "signature upper": _header("authorization", lambda value: value[:-64] + "A" * 64),
    "key": _header("authorization", lambda value: value.replace("demo-key", "demo_key")),
    "fewer signed": _header("authorization", lambda value: value.replace(";range", "")),
}
ONLY_QUERY: dict[str, Mutation] = {
    "expires": lambda head: RequestHead(
        head.method, head.path, head.query.replace("Expires=60", "Expires=61"), head.headers
    ),
    "signature twice": lambda head: RequestHead(
        head.method, head.path, f"{head.query}&X-Amz-Signature=0", head.headers
    ),
    "signed payload": _header("x-amz-content-sha256", lambda _: EMPTY_SHA256),
    "fewer signed": lambda head: RequestHead(
        head.method, head.path, head.query.replace("%3Brange", ""), head.headers
    ),
}


def _signed(expires: int | None) -> RequestHead:
    return signed_head(
        "PUT",
        "/train/cats/1.jpg",
        [("prefix", "photos"), ("tagging", "")],
        [("x-amz-meta-a", "one two"), ("range", "bytes=0-9")],
        expires=expires,
    )


@pytest.mark.parametrize("name", [*MUTATIONS, *ONLY_HEADER])
@pytest.mark.parametrize("warm", [False, True])
def test_a_request_changed_after_signing_is_refused(name: str, warm: bool) -> None:
    head, subject = _signed(None), authenticator()
    if warm:
        subject.authenticate(head)
    changed = (MUTATIONS | ONLY_HEADER)[name](head)
    assert changed != head
    with pytest.raises(S3Error) as caught:
        subject.authenticate(changed)
    assert caught.value.status in (400, 403)
    assert SECRET not in str([caught.value.message, caught.value.fields])


@pytest.mark.parametrize("name", [*MUTATIONS, *ONLY_QUERY])
@pytest.mark.parametrize("warm", [False, True])
def test_a_presigned_request_changed_after_signing_is_refused(name: str, warm: bool) -> None:
    head, subject = _signed(60), authenticator()
    if warm:
        subject.authenticate(head)
    changed = (MUTATIONS | ONLY_QUERY)[name](head)
    assert changed != head
    with pytest.raises(S3Error) as caught:
        subject.authenticate(changed)
    assert caught.value.status in (400, 403)


@given(st.integers(0, 10_000), st.characters(codec="ascii"), st.booleans())
def test_no_character_of_the_query_or_authorization_can_be_changed(
    position: int, char: str, presigned: bool
) -> None:
    head = _signed(60 if presigned else None)
    text = head.query if presigned else head.header("authorization") or ""
    position %= len(text)
    assume(text[position] != char)
    changed = text[:position] + char + text[position + 1 :]
    if presigned:
        # What the canonical form reads as one: a hex digit's case, an empty parameter.
        assume(text[position].lower() != char.lower() and text[position] != "&" != char)
        head = RequestHead(head.method, head.path, changed, head.headers)
    else:
        head = with_header(head, "authorization", changed)
    # A blank after the algorithm or around a comma is no part of what was signed.
    assume(presigned or text.split() != changed.split())
    with pytest.raises(S3Error):
        authenticator().authenticate(head)


def test_the_wrong_secret_shows_what_was_signed_but_no_signature() -> None:
    head = signed_head(secret="wrong")
    with pytest.raises(SignatureDoesNotMatch) as caught:
        authenticator().authenticate(head)
    fields = caught.value.fields
    assert set(fields) == {"AWSAccessKeyId", "StringToSign", "CanonicalRequest"}
    assert fields["CanonicalRequest"].startswith("GET\n/train/a.bin\n\nhost:")
    assert (head.header("authorization") or "")[-64:] not in str(fields)


def test_a_request_without_a_signature_is_anonymous() -> None:
    head = RequestHead("GET", "/train/a", "prefix=a&Signature=1", (("host", "h"),))
    assert authenticator().authenticate(head) is ANONYMOUS


def test_an_unknown_key_is_named() -> None:
    head = aws_head("/", "0" * 64)
    with pytest.raises(InvalidAccessKeyId) as caught:
        authenticator(now=lambda: AWS_NOW).authenticate(head)
    assert caught.value.fields == {"AWSAccessKeyId": "AKIAIOSFODNN7EXAMPLE"}


def test_a_wrong_region_is_answered_with_the_right_one() -> None:
    with pytest.raises(AuthorizationHeaderMalformed, match="expecting 'us-east-1'") as caught:
        authenticator().authenticate(signed_head(region="eu-north-1"))
    assert caught.value.fields == {"Region": "us-east-1"}
    with pytest.raises(AuthorizationQueryParametersError, match="expecting 'us-east-1'"):
        authenticator().authenticate(signed_head(region="eu-north-1", expires=60))


def test_a_signature_for_another_service_is_refused() -> None:
    with pytest.raises(AuthorizationHeaderMalformed, match='incorrect service "sts"'):
        authenticator().authenticate(signed_head(service="sts"))


@pytest.mark.parametrize("off_seconds", [-901, 901])
def test_a_clock_that_is_off_is_refused(off_seconds: int) -> None:
    example = AWS_EXAMPLES["list"]
    with pytest.raises(RequestTimeTooSkewed) as caught:
        aws(AWS_NOW + off_seconds).authenticate(example)
    assert caught.value.fields["RequestTime"] == "20130524T000000Z"
    assert caught.value.fields["MaxAllowedSkewMilliseconds"] == "900000"


def test_a_key_remembered_yesterday_does_not_sign_today() -> None:
    subject = Authenticator(
        [AWS_TENANT], region="us-east-1", clock_skew_seconds=900, now=lambda: AWS_NOW - 60
    )
    example = AWS_EXAMPLES["list"]
    assert subject.authenticate(example).tenant is AWS_TENANT
    with pytest.raises(AuthorizationHeaderMalformed, match="not the same as X-Amz-Date"):
        subject.authenticate(with_header(example, "x-amz-date", "20130523T235959Z"))


@pytest.mark.parametrize("date", ["", "yesterday", "20130524T000000", "20131324T000000Z"])
def test_a_date_that_is_none_is_refused(date: str) -> None:
    with pytest.raises(AccessDenied, match="valid Date or x-amz-date"):
        aws().authenticate(with_header(AWS_EXAMPLES["list"], "x-amz-date", date))


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
def test_the_date_header_serves_where_x_amz_date_is_absent(zone: str) -> None:
    date = format_datetime(datetime.now(UTC)).replace("+0000", zone)
    head = signed_head(headers=[("Date", date)])
    assert head.header("x-amz-date") is None
    assert authenticator().authenticate(with_header(head, "date", head.header("date"))).tenant


def test_the_host_must_be_signed() -> None:
    head = aws_head("/", "0" * 64)
    value = (head.header("authorization") or "").replace("host;", "")
    with pytest.raises(AccessDenied) as caught:
        aws().authenticate(with_header(head, "authorization", value))
    assert caught.value.fields == {"HeadersNotSigned": "host"}


@pytest.mark.parametrize("expires", [None, 60])
def test_every_amz_header_must_be_signed(expires: int | None) -> None:
    head = with_header(signed_head(expires=expires), "x-amz-acl", "public-read")
    with pytest.raises(AccessDenied) as caught:
        authenticator().authenticate(head)
    assert caught.value.fields == {"HeadersNotSigned": "x-amz-acl"}


def test_the_payload_must_be_declared() -> None:
    head = with_header(AWS_EXAMPLES["list"], "x-amz-content-sha256", None)
    with pytest.raises(InvalidRequest, match="x-amz-content-sha256"):
        aws().authenticate(head)


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        ("AWS AKID:c2lnbmF0dXJl", NotImplementedS3),
        ("AWS4-ECDSA-P256-SHA256 Credential=a", NotImplementedS3),
        ("Basic ZGVtbzpkZW1v", InvalidArgument),
        ("", InvalidArgument),
        ("AWS4-HMAC-SHA256", AuthorizationHeaderMalformed),
        ("AWS4-HMAC-SHA256 Credential=a,SignedHeaders=host", AuthorizationHeaderMalformed),
        (
            "AWS4-HMAC-SHA256 Credential=a,Credential=b,SignedHeaders=h,Signature=0",
            AuthorizationHeaderMalformed,
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/b,SignedHeaders=host,Signature=0",
            AuthorizationHeaderMalformed,
        ),
        (
            "AWS4-HMAC-SHA256 Credential=k/2013/us-east-1/s3/aws4_request,SignedHeaders=host,"
            "Signature=0",
            AuthorizationHeaderMalformed,
        ),
        (
            "AWS4-HMAC-SHA256 Credential=k/20130524/us-east-1/s3/aws5_request,SignedHeaders=host,"
            "Signature=0",
            AuthorizationHeaderMalformed,
        ),
    ],
)
def test_other_authorizations_get_an_error_that_names_what_is_wrong(
    authorization: str, error: type[S3Error]
) -> None:
    head = RequestHead("GET", "/", "", (("host", "h"), ("authorization", authorization)))
    with pytest.raises(error):
        authenticator().authenticate(head)


def test_parts_of_the_authorization_may_come_in_any_order_with_blanks() -> None:
    head = AWS_EXAMPLES["list"]
    algorithm, _, rest = (head.header("authorization") or "").partition(" ")
    turned = f"{algorithm}  {' ,  '.join(reversed(rest.split(',')))}"
    assert aws().authenticate(with_header(head, "authorization", turned)).tenant is AWS_TENANT


def test_two_mechanisms_at_once_are_refused() -> None:
    head = signed_head()
    for query in (AWS_PRESIGNED.query, "AWSAccessKeyId=a&Signature=b&Expires=1"):
        with pytest.raises(InvalidArgument, match="Only one auth mechanism"):
            authenticator().authenticate(RequestHead("GET", "/", query, head.headers))
    twice = RequestHead("GET", "/", "", (*head.headers, head.headers[-1]))
    with pytest.raises(S3Error):
        authenticator().authenticate(twice)


def test_signature_version_2_in_the_query_is_not_supported() -> None:
    head = RequestHead("GET", "/", "AWSAccessKeyId=a&Signature=b&Expires=1", (("host", "h"),))
    with pytest.raises(NotImplementedS3, match="Please use AWS4-HMAC-SHA256"):
        authenticator().authenticate(head)


@pytest.mark.parametrize("expires", [None, 60])
def test_a_session_token_is_invalid_because_there_are_none(expires: int | None) -> None:
    with pytest.raises(InvalidToken):
        authenticator().authenticate(signed_head(token="session", expires=expires))


@pytest.mark.parametrize("missing", sorted(AWS_PRESIGNED.query.split("&")))
def test_a_presigned_request_needs_all_its_parts(missing: str) -> None:
    query = "&".join(part for part in AWS_PRESIGNED.query.split("&") if part != missing)
    with pytest.raises(AuthorizationQueryParametersError, match="requires the X-Amz-Algorithm"):
        aws().authenticate(RequestHead("GET", "/test.txt", query, AWS_PRESIGNED.headers))


@pytest.mark.parametrize(
    ("part", "value", "error"),
    [
        ("Expires=86400", "Expires=0", AuthorizationQueryParametersError),
        ("Expires=86400", "Expires=-1", AuthorizationQueryParametersError),
        ("Expires=86400", "Expires=604801", AuthorizationQueryParametersError),
        ("Expires=86400", "Expires=soon", AuthorizationQueryParametersError),
        ("Expires=86400", f"Expires={'9' * 5000}", AuthorizationQueryParametersError),
        ("Expires=86400", "Expires=", AuthorizationQueryParametersError),
        ("Date=20130524T000000Z", "Date=2013", AuthorizationQueryParametersError),
        ("Date=20130524T", "Date=20130523T", AuthorizationQueryParametersError),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", AuthorizationQueryParametersError),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", NotImplementedS3),
        ("%2Fs3%2F", "%2Fec2%2F", AuthorizationQueryParametersError),
        ("SignedHeaders=host", "SignedHeaders=range", AccessDenied),
        ("Expires=86400", "Expires=604800", SignatureDoesNotMatch),
    ],
)
def test_odd_values_in_a_presigned_request_are_refused(
    part: str, value: str, error: type[S3Error]
) -> None:
    assert part in AWS_PRESIGNED.query
    query = AWS_PRESIGNED.query.replace(part, value)
    with pytest.raises(error):
        aws().authenticate(RequestHead("GET", "/test.txt", query, AWS_PRESIGNED.headers))


def test_a_presigned_request_may_carry_its_payload_in_the_query() -> None:
    head = signed_head("PUT", query=[("X-Amz-Content-Sha256", EMPTY_SHA256)], expires=60)
    with pytest.raises(SignatureDoesNotMatch):
        # botocore signs UNSIGNED-PAYLOAD whatever the parameter says.
        authenticator().authenticate(head)
    head = signed_head("PUT", query=[("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")], expires=60)
    assert authenticator().authenticate(head).payload.kind == "unsigned"


def _signed_payload(declared: str, monkeypatch: pytest.MonkeyPatch) -> RequestHead:
    monkeypatch.setattr(
        "tests.auth.signing_client.S3SigV4Auth.payload", lambda _self, _request: declared
    )
    return signed_head("PUT")


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("UNSIGNED-PAYLOAD", "unsigned"),
        (EMPTY_SHA256, "single"),
        (EMPTY_SHA256.upper(), "single"),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "signed-chunks"),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "signed-chunks-trailer"),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", "unsigned-chunks-trailer"),
    ],
)
def test_the_payload_is_vouched_for_as_declared(
    declared: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = authenticator().authenticate(_signed_payload(declared, monkeypatch)).payload
    assert payload.kind == kind
    assert payload.sha256_hex == (EMPTY_SHA256 if kind == "single" else None)
    assert (payload.chunks is not None) == kind.startswith("signed-chunks")


@pytest.mark.parametrize("declared", ["", "abc", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"])
def test_a_payload_declared_otherwise_is_refused(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        authenticator().authenticate(_signed_payload(declared, monkeypatch))
    assert caught.value.fields["ArgumentValue"] == declared


WIRE = st.binary(max_size=200).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(WIRE | WIRE.map("AWS4-HMAC-SHA256 Credential=".__add__), WIRE, WIRE, WIRE)
def test_any_authorization_is_refused_with_an_s3_error(
    authorization: str, path: str, query: str, date: str
) -> None:
    headers = (("host", "h"), ("authorization", authorization), ("x-amz-date", date))
    with pytest.raises(S3Error):
        authenticator().authenticate(RequestHead("GET", path, query, headers))


@given(st.dictionaries(st.sampled_from(AWS_PRESIGNED.query.split("&")), WIRE, min_size=1))
def test_any_presigned_query_is_refused_with_an_s3_error(changes: dict[str, str]) -> None:
    parts = [
        f"{part.partition('=')[0]}={quote(changes[part].encode('utf-8', 'surrogateescape'))}"
        if part in changes
        else part
        for part in AWS_PRESIGNED.query.split("&")
    ]
    assume(sorted(parts) != sorted(AWS_PRESIGNED.query.split("&")))
    with pytest.raises(S3Error) as caught:
        aws().authenticate(RequestHead("GET", "/test.txt", "&".join(parts), AWS_PRESIGNED.headers))
    for text in (caught.value.message, *caught.value.fields.values()):
        assert all(char == "\n" or char.isprintable() for char in text)
