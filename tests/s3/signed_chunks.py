"""A client that writes aws-chunked bodies, with AWS's own example to check it by."""

import hashlib
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime

from gateway.auth.identity import PayloadSigning
from gateway.auth.request import RequestHead
from gateway.auth.signing import SigningKey
from gateway.auth.sigv4 import Authenticator
from gateway.auth.sigv4_chunks import ChunkSigner
from gateway.auth.tenants import Tenant
from gateway.config import Secret

SECRET = Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
TIMESTAMP = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
_EMPTY = hashlib.sha256().hexdigest()


def key() -> SigningKey:
    return SigningKey(SECRET, "20130524", "us-east-1")


def signer(seed: str = SEED) -> ChunkSigner:
    """The gateway's side of the chain that `signed_body` writes."""
    return ChunkSigner(key(), TIMESTAMP, SCOPE, seed)


def signed_body(
    chunks: Sequence[bytes], trailer: Sequence[tuple[str, str]] | None = None, *, seed: str = SEED
) -> bytes:
    """Signed chunks and the empty one; with `trailer`, its lines and their signature."""
    derived = f"AWS4{SECRET.reveal()}".encode()
    for part in SCOPE.split("/"):
        derived = hmac.digest(derived, part.encode(), "sha256")
    previous, wire = seed, b""

    def sign(kind: str, hashes: str) -> str:
        lines = (f"AWS4-HMAC-SHA256-{kind}", TIMESTAMP, SCOPE, previous, hashes)
        return hmac.digest(derived, "\n".join(lines).encode(), "sha256").hex()

    for chunk in (*chunks, b""):
        previous = sign("PAYLOAD", f"{_EMPTY}\n{hashlib.sha256(chunk).hexdigest()}")
        wire += f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk
        wire += b"\r\n" if chunk else b""
    if trailer is not None:
        lines = "".join(f"{name}:{value}\n" for name, value in trailer)
        signature = sign("TRAILER", hashlib.sha256(lines.encode()).hexdigest())
        wire += lines.replace("\n", "\r\n").encode()
        wire += f"x-amz-trailer-signature:{signature}\r\n".encode()
    return wire + b"\r\n"


def unsigned_body(chunks: Sequence[bytes], trailer: Sequence[tuple[str, str]] = ()) -> bytes:
    """Unsigned chunks and the empty one, as botocore writes them."""
    wire = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailer)
    return wire + b"0\r\n" + lines.encode() + b"\r\n"


def aws_example(*, trailer: bool) -> tuple[RequestHead, PayloadSigning, bytes]:
    """The upload of 65 KiB of "a" in AWS's documentation: head, what it says, body.

    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
    """
    if trailer:
        kind, seed = (
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        )
        signatures = (
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        )
        end = (
            b"x-amz-checksum-crc32c:sOO8/Q==\n\r\n"
            b"x-amz-trailer-signature:"
            b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
        )
        own = (("x-amz-trailer", "x-amz-checksum-crc32c"),)
    else:
        kind, seed = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", SEED
        signatures = (
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        )
        end = b"\r\n"
        own = (("content-length", "66824"),)
    signed = sorted(
        (
            ("content-encoding", "aws-chunked"),
            ("host", "s3.amazonaws.com"),
            ("x-amz-content-sha256", kind),
            ("x-amz-date", TIMESTAMP),
            ("x-amz-decoded-content-length", "66560"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            *own,
        )
    )
    authorization = (
        f"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/{SCOPE},"
        f"SignedHeaders={';'.join(name for name, _ in signed)},Signature={seed}"
    )
    head = RequestHead(
        "PUT", "/examplebucket/chunkObject.txt", "", (*signed, ("authorization", authorization))
    )
    identity = Authenticator(
        [Tenant("aws", "AKIAIOSFODNN7EXAMPLE", SECRET)],
        region="us-east-1",
        clock_skew_seconds=900,
        now=datetime(2013, 5, 24, tzinfo=UTC).timestamp,
    ).authenticate(head)
    chunks = (b"a" * 65_536, b"a" * 1_024, b"")
    body = b"".join(
        f"{len(chunk):x};chunk-signature={signature}\r\n".encode() + chunk + b"\r\n" * bool(chunk)
        for chunk, signature in zip(chunks, signatures, strict=True)
    )
    return head, identity.payload, body + end
