"""A client that signs as botocore does, for tests of what the gateway accepts."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.auth.request import RequestHead
from gateway.auth.tenants import Tenant
from gateway.config import Rule, Secret

SECRET = "not/so+secret=ÄÖÜ"
TENANT = Tenant("demo", "demo-key", Secret(SECRET), (Rule(allow=("*",)),))
HOST = "127.0.0.1:9000"
REGION = "us-east-1"


def signed_head(
    method: str = "GET",
    path: str = "/train/a.bin",
    query: Sequence[tuple[str, str]] = (),
    headers: Iterable[tuple[str, str]] = (),
    *,
    body: bytes = b"",
    secret: str = SECRET,
    token: str | None = None,
    region: str = REGION,
    service: str = "s3",
    expires: int | None = None,
) -> RequestHead:
    """A request as botocore signs it now; `path` encoded, `query` not. `expires`: presigned."""
    pairs = "&".join(
        [f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}" for name, value in query]
    )
    request = AWSRequest(method, f"http://{HOST}{path}{'?' if pairs else ''}{pairs}", data=body)
    for name, value in headers:
        request.headers.add_header(name, value)
    credentials = Credentials(TENANT.access_key, secret, token)
    if expires is None:
        S3SigV4Auth(credentials, service, region).add_auth(request)
    else:
        S3SigV4QueryAuth(credentials, service, region, expires=expires).add_auth(request)
    url = urlsplit(str(request.url))
    wire = [
        ("host", HOST),
        *((name.lower(), value.strip()) for name, value in request.headers.items()),
    ]
    return RequestHead(method, url.path, url.query, tuple(wire))


def with_header(head: RequestHead, name: str, value: str | None) -> RequestHead:
    """`head` with one header replaced, added, or (None) taken away."""
    kept = [pair for pair in head.headers if pair[0] != name]
    if value is not None:
        kept.append((name, value))
    return RequestHead(head.method, head.path, head.query, tuple(kept))
