"""Requests handed to an S3 origin as they are, but for their signature.

For what the gateway does not do itself: versioning, object lock, retention, SSE-C,
GetObjectAttributes and the like. Both bodies stream.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, NoCredentialsError
from yarl import URL

from gateway.errors import TierUnavailable
from gateway.model.body import Body
from gateway.tiers.origin_s3.client import S3Connection, socket_factory, trailing_checksum
from gateway.tiers.origin_s3.errors import (
    UNREACHABLE,
    Asked,
    code_of,
    from_answer,
    from_exception,
    unreachable,
)
from gateway.tiers.origin_s3.headers import outgoing
from gateway.tiers.origin_s3.upload import Payload, UploadStream, payload
from gateway.tiers.protocol import RelayRequest

_PIECE_BYTES = 1024 * 1024
_ERROR_BYTES = 64 * 1024
_LONGEST_PAUSE_SECONDS = 20.0
# Connection by connection (RFC 9110 section 7.6.1), or about the request's own framing and
# signature, which are made anew.
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_MADE_ANEW = _HOP_BY_HOP | frozenset({
    "accept-encoding", "authorization", "content-length", "content-md5", "date", "expect", "host",
    "user-agent", "x-amz-content-sha256", "x-amz-date", "x-amz-decoded-content-length",
    "x-amz-security-token", "x-amz-trailer",
})  # fmt: skip


class S3RelayAnswer:
    """An origin's answer whose body is still to come."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        beginning: bytes,
        asked: Asked,
        count: Any,
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.lower(): value
            for name, value in response.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        self._response = response
        self._beginning = beginning
        self._asked = asked
        self._count = count

    async def blocks(self) -> AsyncIterator[bytes]:
        """The body in pieces of at most 1 MiB; TierUnavailable where it breaks off."""
        try:
            if self._beginning:
                yield self._beginning
            while True:
                try:
                    block = await self._response.content.read(_PIECE_BYTES)
                except UNREACHABLE as error:
                    raise unreachable(self._asked, error) from error
                if not block:
                    return
                self._count(len(block))
                yield block
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends the answer; safe at any point and twice."""
        self._response.close()


class Relaying(S3Connection):
    """The relaying part of `Origin`."""

    async def start(self) -> None:
        await super().start()
        config = self._config
        context: ssl.SSLContext | bool = True
        if config.tls_ca_file is not None:
            context = await asyncio.to_thread(
                ssl.create_default_context, cafile=str(config.tls_ca_file)
            )
        self._http = await self._exit.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=config.connections, ssl=context, socket_factory=socket_factory(config)
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=config.connect_timeout_seconds,
                    sock_read=config.read_timeout_seconds,
                ),
                auto_decompress=False,
                skip_auto_headers=("content-type", "user-agent"),
            )
        )

    async def relay(self, request: RelayRequest, body: Body | None) -> S3RelayAnswer:
        """The origin's answer, whatever its status, but for what is ours to answer for: 5xx and
        refused credentials are TierUnavailable."""
        asked = Asked(self._name, "Relay", request.bucket, request.key)
        headers = outgoing({n: v for n, v in request.headers.items() if n not in _MADE_ANEW})
        upload: Payload | None = None
        if body is not None:
            encoding = headers.get("content-encoding")
            upload = await payload(body, encoding, self._config.read_timeout_seconds)
            headers.update(upload.headers)
        attempt = 1
        while True:
            try:
                return await self._relay_once(asked, request, headers, upload)
            except TierUnavailable:
                started = upload is not None and (
                    isinstance(upload.data, UploadStream) and upload.data.started
                )
                if started or attempt >= self._config.attempts:
                    self._metrics.origin_errors.labels("Relay").inc()
                    raise
            # Full jitter: https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/
            pause = min(2.0 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(random.random() * pause)  # noqa: S311 - not a secret
            attempt += 1

    async def _relay_once(
        self,
        asked: Asked,
        request: RelayRequest,
        headers: Mapping[str, str],
        upload: Payload | None,
    ) -> S3RelayAnswer:
        data = None if upload is None else upload.data
        stream = data if isinstance(data, UploadStream) else None
        try:
            url = await self._url(request)
            signed = await self._signed(request.method, url, headers, stream)
            self._metrics.origin_requests.labels("Relay").inc()
            async with asyncio.timeout(None) as deadline:
                if stream is not None:
                    stream.watch(deadline)
                    stream.sending()
                response = await self._http.request(
                    request.method,
                    URL(url, encoded=True),
                    headers=dict(signed.items()),
                    data=data,
                    expect100=stream is not None,
                    allow_redirects=False,
                )
        except (BotoCoreError, *UNREACHABLE) as error:
            if stream is not None and stream.failure is not None:
                raise stream.failure from None
            raise from_exception(asked, error) from error
        try:
            beginning = await self._error_body(asked, response) if response.status >= 300 else b""
        except BaseException:
            response.close()
            raise
        reads_object = request.method == "GET" and bool(request.key) and response.status < 300
        count = self._metrics.origin_read_bytes.inc if reads_object else _count_nothing
        return S3RelayAnswer(response, beginning, asked, count)

    async def _error_body(self, asked: Asked, response: aiohttp.ClientResponse) -> bytes:
        """The beginning of an error's body; raises where the error is not the client's."""
        try:
            body = await response.content.read(_ERROR_BYTES)
        except UNREACHABLE as error:
            raise unreachable(asked, error) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        code, message = code_of(body)
        error_seen = from_answer(asked, response.status, code, message, headers)
        if isinstance(error_seen, TierUnavailable):
            raise error_seen
        return body

    async def _signed(
        self, method: str, url: str, headers: Mapping[str, str], stream: UploadStream | None
    ) -> Mapping[str, str]:
        """The headers with the signature of the origin's credentials among them."""
        credentials = await self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        request = AWSRequest(method=method, url=url, headers=dict(headers))
        request.headers["accept-encoding"] = "identity"
        request.context["client_config"] = self._client.meta.config
        if stream is not None and stream.trailing is not None:
            request.context["checksum"] = trailing_checksum(stream.trailing)
        S3SigV4Auth(
            await credentials.get_frozen_credentials(), "s3", self._client.meta.region_name
        ).add_auth(request)
        return dict(request.headers.items())

    async def _url(self, request: RelayRequest) -> str:
        """The address as botocore makes it, so that addressing follows the same rules."""
        asked = {"Bucket": request.bucket} if request.bucket else {}
        operation = "head_bucket" if request.bucket else "list_buckets"
        if request.key:
            asked["Key"] = request.key
            operation = "head_object"
        presigned = await self._client.generate_presigned_url(operation, Params=asked)
        bare = urlsplit(presigned)._replace(query="", fragment="").geturl()
        return f"{bare}?{encoded_query(request.query)}" if request.query else bare


def encoded_query(pairs: tuple[tuple[str, str], ...]) -> str:
    """A query as SigV4 encodes it, so that what is signed is what is sent."""
    return "&".join(
        f"{_encoded(name)}={_encoded(value)}" if value else _encoded(name) for name, value in pairs
    )


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~")


def _count_nothing(_: float) -> None:
    """An answer that is no object's bytes."""
