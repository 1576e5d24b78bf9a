"""A bucket at an endpoint, and who asks: what a connection has to know. No I/O but for profiles."""

import os
import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from feedrack.errors import WrongAddress
from feedrack.profile import Credentials, Profile

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")


class Endpoint(NamedTuple):
    """One bucket: `base` is the encoded path in front of a key, without a slash at its end.

    `service_host_header` and `service_base`: the same of the service, whose requests name no
    bucket."""

    bucket: str
    tls: bool
    host: str
    port: int
    host_header: str
    base: str
    region: str
    ca_file: str | None
    service_host_header: str
    service_base: str

    def path(self, key: str | None) -> str:
        """The path of a key as it is sent and signed, or of the bucket."""
        if key is None:
            return self.base or "/"
        return f"{self.base}/{quote(key, safe='/-_.~')}"

    @property
    def service_path(self) -> str:
        """The path of the service."""
        return self.service_base or "/"


class Access(NamedTuple):
    """How a caller wants to reach S3; what is None is found as every S3 tool finds it.

    It goes into pickles as it is: with the secret if that was given, else without. Printed, it
    shows none."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials: Credentials | None = None
    anonymous: bool = False
    ca_file: str | None = None
    timeout_seconds: float = 60.0
    attempts: int = 6
    connections: int = 8
    short_circuit: bool = True
    rdma: bool = True


def given_credentials(
    access_key: str | None, secret_key: str | None, session_token: str | None
) -> Credentials | None:
    """Credentials as arguments give them, or None. WrongAddress for half of them."""
    if access_key is None and secret_key is None:
        return None
    if not access_key or not secret_key:
        raise WrongAddress("access_key and secret_key come together")
    return Credentials(access_key, secret_key, session_token)


def parse_address(url: str) -> tuple[str, str]:
    """Bucket and prefix of `s3://bucket/prefix`. WrongAddress for anything else."""
    scheme, found, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not found or scheme not in ("s3", "feedrack") or not _BUCKET.match(bucket):
        raise WrongAddress(f"not of the form s3://bucket/prefix: {url}")
    return bucket, prefix


def find_endpoint(bucket: str, access: Access, profile: Profile) -> Endpoint:
    """Where requests for a bucket go. WrongAddress for an endpoint that is no http URL."""
    if not _BUCKET.match(bucket):
        raise WrongAddress(f"not a name of a bucket: {bucket}")
    region = access.region or profile.region() or "us-east-1"
    url = access.endpoint_url or profile.endpoint_url() or f"https://s3.{region}.amazonaws.com"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongAddress(f"not an endpoint: {url}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise WrongAddress(f"not an endpoint: {parts.scheme}://{parts.hostname}")
    tls = parts.scheme == "https"
    host = parts.hostname
    # Path style wherever an endpoint is named: few but AWS have a host name a bucket.
    style = profile.addressing()
    if style not in ("path", "virtual"):
        aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        style = "virtual" if aws and "." not in bucket else "path"
    service_base = base = parts.path.rstrip("/")
    usual = 443 if tls else 80
    service_host_header = _host_header(host, port, usual)
    if style == "virtual":
        host = f"{bucket}.{host}"
    else:
        base = f"{base}/{bucket}"
    return Endpoint(
        bucket,
        tls,
        host,
        port or usual,
        _host_header(host, port, usual),
        base,
        region,
        access.ca_file or profile.ca_file(),
        service_host_header,
        service_base,
    )


def _host_header(host: str, port: int | None, usual: int) -> str:
    named = f"[{host}]" if ":" in host else host
    return named if port in (None, usual) else f"{named}:{port}"


def find_profile(access: Access) -> Profile:
    """The profile that `access` means, in this process."""
    return Profile(access.profile, os.environ)
