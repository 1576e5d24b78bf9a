"""The one client of an S3 origin: its pool, its retries, and what every request goes through.

Requests go through aiobotocore for endpoints, signatures and retries. Headers that describe an
object are not turned into botocore's parameters and back: they are added to the request as they
came, just before it is signed, so that a header botocore has no name for arrives as well.
"""

import asyncio
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from hashlib import md5
from typing import TYPE_CHECKING, Any, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp import ClientConnectorError, ClientResponse, ClientSession, ConnectionTimeoutError
from aiohttp.typedefs import RawHeaders
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from gateway.config import S3OriginConfig, Secret
from gateway.errors import FeedrackError, NoSuchBucket, TierUnavailable
from gateway.model.checksums import HEADER_BY_ALGORITHM
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_s3.errors import UNREACHABLE, Asked, from_exception
from gateway.tiers.origin_s3.upload import UploadStream

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

Answer = TypeVar("Answer")

# Operations for which some origins insist on Content-MD5, whatever checksum botocore adds.
_WITH_MD5 = frozenset({
    "DeleteObjects", "PutBucketTagging", "PutObjectTagging",
})  # fmt: skip

# Operations that make something visible, or end it: what they do is done once.
_CHANGES = frozenset({
    "CompleteMultipartUpload", "CopyObject", "DeleteObject", "DeleteObjects", "PutObject",
})  # fmt: skip
_NOT_REACHED = (ClientConnectorError, ConnectionTimeoutError)


class _Call:
    """What the event handlers below must know of the request being made."""

    def __init__(self, headers: Mapping[str, str], stream: UploadStream | None) -> None:
        self.headers = headers
        self.stream = stream


_CALL: ContextVar[_Call] = ContextVar("call")
_PLAIN = _Call({}, None)


class _Response(ClientResponse):
    """An answer whose header values are UTF-8, as aiobotocore demands.

    Some services hand back metadata in the bytes it came in; Latin-1 is what HTTP once said.
    """

    @property
    def raw_headers(self) -> RawHeaders:
        return tuple((name, _utf8(value)) for name, value in super().raw_headers)


class _HttpSession(AIOHTTPSession):
    async def _get_session(self, proxy_url: str | None) -> ClientSession:
        # The stubs leave this method out; test_origin_s3_reading shows that it is there.
        session: ClientSession = await super()._get_session(proxy_url)  # type: ignore[misc]
        session._response_class = _Response
        # aiohttp asks once more by itself where a connection breaks, also for a PUT or a DELETE
        # that the origin may have done. botocore asks again where that is right.
        session._retry_connection = False
        return session


class S3Connection:
    """What the parts of an S3 origin share."""

    def __init__(
        self, name: str, config: S3OriginConfig, secret: Secret | None, metrics: Metrics
    ) -> None:
        self._name = name
        self._config = config
        self._metrics = metrics
        self._session = AioSession()
        if config.access_key is not None and secret is not None:
            self._session.set_credentials(config.access_key, secret.reveal())
        self._exit = AsyncExitStack()
        self._started: S3Client | None = None
        # Buckets seen to be there, so that a bare 404 can be told apart without asking each time.
        self._seen_buckets: set[str] = set()

    @property
    def name(self) -> str:
        return self._name

    @property
    def relays(self) -> bool:
        return True

    @property
    def _client(self) -> "S3Client":
        if self._started is None:
            raise TierUnavailable(f"origin {self._name} is not started")
        return self._started

    async def start(self) -> None:
        """Builds the client. Nothing is asked of the origin yet."""
        config = self._config
        self._started = client = await self._exit.enter_async_context(
            self._session.create_client(
                "s3",
                region_name=config.region,
                endpoint_url=config.endpoint_url,
                verify=None if config.tls_ca_file is None else str(config.tls_ca_file),
                config=_client_config(config),
            )
        )
        events = client.meta.events
        events.register("before-call.s3", _add_headers)
        events.register("before-sign.s3", _choose_payload_hash)
        events.register("before-send.s3", self._begin_attempt)
        # Its answer counts, though the stubs say that a handler has none.
        events.register_first("needs-retry.s3", _refuse_to_resend)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Closes all connections. Safe to call twice."""
        self._started = None
        await self._exit.aclose()

    async def _send(
        self,
        operation: str,
        call: Awaitable[Answer],
        *,
        bucket: str = "",
        ref: ObjectRef | None = None,
        headers: Mapping[str, str] | None = None,
        stream: UploadStream | None = None,
    ) -> Answer:
        """The answer to one request, after retries. Raises S3Error or TierUnavailable, or what
        the body of an upload raised."""
        token = _CALL.set(_Call(headers or {}, stream))
        try:
            if stream is None:
                answer = await call
            else:
                async with asyncio.timeout(None) as deadline:
                    stream.watch(deadline)
                    answer = await call
        except (ClientError, BotoCoreError, *UNREACHABLE) as error:
            if stream is not None and stream.failure is not None:
                raise stream.failure from None
            asked = self._asked(operation, bucket, ref)
            raise self._failed(asked, from_exception(asked, error)) from error
        finally:
            _CALL.reset(token)
        if ref is not None:
            self._seen_buckets.add(ref.bucket)
        return answer

    def _asked(self, operation: str, bucket: str = "", ref: ObjectRef | None = None) -> Asked:
        if ref is None:
            return Asked(self._name, operation, bucket)
        return Asked(self._name, operation, ref.bucket, ref.key, ref.version_id)

    def _failed(self, asked: Asked, error: FeedrackError) -> FeedrackError:
        if isinstance(error, TierUnavailable):
            self._metrics.origin_errors.labels(asked.operation).inc()
        elif isinstance(error, NoSuchBucket):
            self._seen_buckets.discard(asked.bucket)
        return error

    def _begin_attempt(self, event_name: str, **_: Any) -> None:
        self._metrics.origin_requests.labels(event_name.rpartition(".")[2]).inc()
        stream = _CALL.get(_PLAIN).stream
        if stream is not None:
            stream.sending()


def address(ref: ObjectRef) -> dict[str, Any]:
    """The parameters that name an object or one of its versions."""
    named = {"Bucket": ref.bucket, "Key": ref.key}
    return named if ref.version_id is None else named | {"VersionId": ref.version_id}


def fields(answer: Any) -> Mapping[str, str]:
    """The lower-case headers of an answer."""
    headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers


def trailing_checksum(algorithm: str) -> dict[str, Any]:
    """What makes botocore sign for a checksum in the trailer."""
    return {
        "request_algorithm": {
            "algorithm": algorithm.lower(),
            "in": "trailer",
            "name": HEADER_BY_ALGORITHM[algorithm],
        }
    }


def _utf8(value: bytes) -> bytes:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1").encode("utf-8")
    return value


def socket_factory(config: S3OriginConfig) -> Callable[[Any], socket.socket]:
    """Sockets that give up on a peer which takes nothing for twice the read timeout.

    Without it a closed connection with unsent bytes lingers for as long as the peer stalls.
    """
    timeout_ms = max(1, round(2000 * config.read_timeout_seconds))

    def create(address_info: Any) -> socket.socket:
        family, kind, protocol, *_ = address_info
        created = socket.socket(family, kind, protocol)
        created.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return created

    return create


def _client_config(config: S3OriginConfig) -> AioConfig:
    return AioConfig(
        signature_version="s3v4",
        max_pool_connections=config.connections,
        connect_timeout=config.connect_timeout_seconds,
        read_timeout=config.read_timeout_seconds,
        # "standard" waits random() * 2**n seconds, at most 20, with a budget for all requests.
        retries={"mode": "standard", "total_max_attempts": config.attempts},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        http_session_cls=_HttpSession,
        connector_args={"socket_factory": socket_factory(config)},
        s3={"addressing_style": config.addressing, "payload_signing_enabled": False},
    )


def _add_headers(params: dict[str, Any], **_: Any) -> None:
    call = _CALL.get(_PLAIN)
    if call.stream is None:
        # botocore asks for a 100 before any body. aiohttp waits for it before its own clock runs:
        # with an origin that says nothing, for ever. A short body is as well sent at once.
        params["headers"].pop("Expect", None)
    params["headers"].update(call.headers)


def _choose_payload_hash(request: AWSRequest, operation_name: str, **_: Any) -> None:
    stream = _CALL.get(_PLAIN).stream
    if stream is not None and stream.trailing is not None:
        request.context["checksum"] = trailing_checksum(stream.trailing)
    elif operation_name in _WITH_MD5 and isinstance(request.data, bytes):
        digest = md5(request.data, usedforsecurity=False).digest()
        del request.headers["content-md5"]
        request.headers["content-md5"] = b64encode(digest).decode("ascii")


def _refuse_to_resend(
    event_name: str, caught_exception: Exception | None = None, **_: Any
) -> bool | None:
    """False, which ends the retries: once a streamed body has been begun, and where the origin may
    have changed something, or may yet, and has not said so. Done twice, it would undo what others
    have written in between, or find gone what it has itself made of it."""
    stream = _CALL.get(_PLAIN).stream
    if stream is not None:
        stream.answered()
        if stream.started:
            return False
    changes = event_name.rpartition(".")[2] in _CHANGES
    return False if changes and _is_unsure(caught_exception) else None


def _is_unsure(error: Exception | None) -> bool:
    """Whether a request may have reached the origin, which has not answered it."""
    # botocore has one exception for all that breaks; what it was is within.
    cause = error.kwargs.get("error") if isinstance(error, BotoCoreError) else error
    return cause is not None and not isinstance(cause, _NOT_REACHED)
