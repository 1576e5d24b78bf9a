"""GetObject and HeadObject with as little as they take: signed by hand, over kept connections.

It does what S3 services answer day by day. What is odd (a redirect, another region, a body of
unknown length, a proxy, a certificate that only aiobotocore's store knows, an express bucket) it
leaves to aiobotocore, which is asked in its place and gives the same kind of answer. Endpoints are
botocore's own: a presigned address says host and path, with the redirects it has learnt.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
"""

import asyncio
import random
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import structlog
from botocore.exceptions import BotoCoreError
from botocore.utils import get_environ_proxies
from msgspec import Struct

from gateway.config import S3OriginConfig, Secret
from gateway.errors import FeedrackError, TierUnavailable
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_s3.client import S3Connection, socket_factory
from gateway.tiers.origin_s3.errors import Asked, code_of, from_answer, unreachable
from gateway.tiers.origin_s3.signing import Keys, signed_head
from gateway.tiers.wire import STRIDE_BYTES, Wire
from gateway.tiers.wire_heads import Head, MalformedAnswerError, unchunked
from gateway.tiers.wires import Endpoint, Wires

_ERROR_BYTES = 64 * 1024
_LONGEST_PAUSE_SECONDS = 20.0
# For so long an origin whose answers are odd is not asked by hand again.
_ODD_SECONDS = 60.0
_MOST_PLACES = 4096
_PRESIGNED = frozenset({
    "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders",
    "X-Amz-Security-Token", "X-Amz-Signature",
})  # fmt: skip
_SCOPE = re.compile(r"Credential=[^,]*/([a-z0-9-]+)/s3/aws4_request")
# Statuses of refusals that are the same however one asks.
_PLAIN_REFUSALS = frozenset((304, 404, 405, 412, 416))

ReadOperation = Literal["GetObject", "HeadObject"]

log = structlog.get_logger()


class OddError(Exception):
    """Something that aiobotocore must see to; the message says what."""


class _Place(Struct, frozen=True):
    """Where a bucket's objects are, and the region to sign for."""

    endpoint: Endpoint
    host: str
    path: str
    region: str


class Fetched:
    """An answer of status 200 or 206: `head`, and the body as `opened.Answer` has it."""

    def __init__(self, head: Head, length_bytes: int, lend: "_Lent") -> None:
        self.head = head
        self.status = head.status
        self._left_bytes = length_bytes
        self._lent: _Lent | None = lend
        self._end_if_whole()

    async def read(self, limit_bytes: int) -> bytes:
        memory = memoryview(bytearray(min(limit_bytes, self._left_bytes, STRIDE_BYTES)))
        return bytes(memory[: await self.read_into(memory)])

    async def read_into(self, memory: memoryview) -> int:
        if self._lent is None:
            return 0
        wire = self._lent.wire
        size_bytes = await wire.receive_into(memory[: self._left_bytes], self._left_bytes)
        self._left_bytes -= size_bytes
        self._end_if_whole()
        return size_bytes

    def close(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.give_back(reusable=False)

    def _end_if_whole(self) -> None:
        if not self._left_bytes and self._lent is not None:
            self._lent.give_back(reusable=self.head.persists)
            self._lent = None


class _Lent(Struct, frozen=True):
    """A connection in use."""

    wires: Wires
    wire: Wire
    endpoint: Endpoint

    def give_back(self, *, reusable: bool) -> None:
        self.wires.give_back(self.wire, self.endpoint, reusable=reusable)


class Fetching(S3Connection):
    """What `Reading` asks first."""

    def __init__(
        self, name: str, config: S3OriginConfig, secret: Secret | None, metrics: Metrics
    ) -> None:
        super().__init__(name, config, secret, metrics)
        self._wires: Wires | None = None
        self._places: dict[str, _Place] = {}
        # Of buckets that are not where they were asked for at first.
        self._regions: dict[str, str] = {}
        self._odd_until = 0.0

    async def start(self) -> None:
        await super().start()
        config = self._config
        cafile = None if config.tls_ca_file is None else str(config.tls_ca_file)
        self._wires = Wires(
            limit=config.connections,
            connect_seconds=config.connect_timeout_seconds,
            read_seconds=config.read_timeout_seconds,
            tls=await asyncio.to_thread(ssl.create_default_context, cafile=cafile),
            create=socket_factory(config),
        )

    async def close(self) -> None:
        wires, self._wires = self._wires, None
        if wires is not None:
            wires.close()
        await super().close()

    async def _fetch(
        self, operation: ReadOperation, ref: ObjectRef, headers: Mapping[str, str]
    ) -> Fetched | None:
        """The answer, after retries; None where aiobotocore is to ask. Raises S3Error or
        TierUnavailable."""
        asked = self._asked(operation, ref=ref)
        try:
            if monotonic() < self._odd_until:
                return None
            fetched = await self._fetch_patiently(asked, ref, headers)
        except OddError as odd:
            log.info("asked through aiobotocore", origin=self._name, reason=str(odd))
            return None
        except FeedrackError as error:
            raise self._failed(asked, error) from error.__cause__
        self._seen_buckets.add(ref.bucket)
        return fetched

    async def _fetch_patiently(
        self, asked: Asked, ref: ObjectRef, headers: Mapping[str, str]
    ) -> Fetched:
        for attempt in range(1, self._config.attempts):
            try:
                return await self._fetch_once(asked, ref, headers)
            except TierUnavailable:
                # Full jitter, as aiobotocore's.
                pause = min(2.0 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(random.random() * pause)  # noqa: S311 - not a secret
        return await self._fetch_once(asked, ref, headers)

    async def _fetch_once(
        self, asked: Asked, ref: ObjectRef, headers: Mapping[str, str]
    ) -> Fetched:
        place = self._places.get(ref.bucket) or await self._find(ref.bucket)
        head_only = asked.operation == "HeadObject"
        request = await self._request("HEAD" if head_only else "GET", place, ref, headers)
        self._metrics.origin_requests.labels(asked.operation).inc()
        try:
            head, lent = await self._exchange(place.endpoint, request)
            if head.status in (200, 206) and head.length_bytes is not None:
                return Fetched(head, 0 if head_only else head.length_bytes, lent)
            body = await _refusal(head, lent, head_only=head_only)
        except MalformedAnswerError as error:
            raise self._odd(f"not quite HTTP: {error}") from error
        except ssl.SSLCertVerificationError as error:
            raise self._odd(str(error)) from error
        except OSError as error:
            raise unreachable(asked, error) from error
        if head.status in (200, 206):
            raise self._odd("a body of unknown length")
        code, message = code_of(body)
        status = head.status
        if (
            status in _PLAIN_REFUSALS
            or (status, code) == (403, "AccessDenied")
            or status == 429
            or (status >= 500 and status != 501)
        ):
            raise from_answer(asked, status, code, message, head.headers)
        # aiobotocore may find out where the bucket really is.
        self._places.pop(ref.bucket, None)
        raise OddError(f"{status} {code}")

    def _learn(self, bucket: str, authorization: str) -> None:
        """Hears how aiobotocore signed a request for the bucket that was answered."""
        scope = _SCOPE.search(authorization)
        if bucket not in self._places and scope is not None:
            if len(self._regions) == _MOST_PLACES:
                self._regions.clear()
            self._regions[bucket] = scope[1]

    async def _exchange(self, endpoint: Endpoint, request: bytes) -> tuple[Head, _Lent]:
        lent = await self._lend(endpoint, fresh=False)
        try:
            return await lent.wire.ask(request), lent
        except ConnectionError:
            lent.give_back(reusable=False)
            # An origin closes what is idle when it likes, also just as it is asked.
            if lent.wire.answered or not lent.wire.idle_since:
                raise
        except BaseException:
            lent.give_back(reusable=False)
            raise
        lent = await self._lend(endpoint, fresh=True)
        try:
            return await lent.wire.ask(request), lent
        except BaseException:
            lent.give_back(reusable=False)
            raise

    async def _lend(self, endpoint: Endpoint, *, fresh: bool) -> _Lent:
        if self._wires is None:
            raise TierUnavailable(f"origin {self._name} is not started")
        return _Lent(self._wires, await self._wires.take(endpoint, fresh=fresh), endpoint)

    async def _request(
        self, method: str, place: _Place, ref: ObjectRef, headers: Mapping[str, str]
    ) -> bytes:
        query = "" if ref.version_id is None else f"versionId={quote(ref.version_id, safe='-_.~')}"
        try:
            return signed_head(
                method,
                f"{place.path}/{quote(ref.key, safe='/-_.~')}",
                query,
                {"host": place.host, **headers},
                keys=await self._keys(),
                region=place.region,
                now=datetime.now(UTC),
            )
        except ValueError as error:
            raise OddError(f"a name that HTTP cannot carry: {error}") from error

    async def _keys(self) -> Keys:
        """The credentials as they are now: those of a role are renewed on the way."""
        try:
            credentials = await self._session.get_credentials()
            now = await credentials.get_frozen_credentials() if credentials is not None else None
        except BotoCoreError as error:
            raise OddError(f"no usable credentials: {error}") from error
        if now is None or now.access_key is None or now.secret_key is None:
            raise OddError("no credentials")
        return Keys(now.access_key, now.secret_key, now.token)

    async def _find(self, bucket: str) -> _Place:
        try:
            url = await self._client.generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": "k"}
            )
        except BotoCoreError as error:
            raise OddError(str(error)) from error
        place = _place(url)
        if place is None or urlsplit(url).scheme in get_environ_proxies(url):
            raise self._odd(f"an address of its own kind, or a proxy, for {bucket}")
        # A presigned address is signed for the region that was configured.
        place = msgspec.structs.replace(place, region=self._regions.get(bucket, place.region))
        if len(self._places) == _MOST_PLACES:
            self._places.clear()
        self._places[bucket] = place
        return place

    def _odd(self, what: str) -> OddError:
        self._odd_until = monotonic() + _ODD_SECONDS
        return OddError(what)


def _place(url: str) -> _Place | None:
    """What a presigned address of the key "k" says; None where it is of no kind we know."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if not query.keys() <= _PRESIGNED or query.get("X-Amz-Algorithm") != ["AWS4-HMAC-SHA256"]:
        return None
    scope = query["X-Amz-Credential"][0].split("/")[-4:]
    if scope[2:] != ["s3", "aws4_request"] or not parts.hostname:
        return None
    tls = parts.scheme == "https"
    usual = 443 if tls else 80
    port = parts.port or usual
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return _Place(
        endpoint=Endpoint(parts.hostname, port, tls),
        host=host if port == usual else f"{host}:{port}",
        path=parts.path.removesuffix("/k"),
        region=scope[1],
    )


async def _refusal(head: Head, lent: _Lent, *, head_only: bool) -> bytes:
    """The beginning of an error's body; the connection is given back."""
    whole = False
    try:
        if head_only or head.status in (204, 304):
            whole = True
            return b""
        raw = b""
        limit_bytes = _ERROR_BYTES if head.length_bytes is None else head.length_bytes
        while len(raw) < min(limit_bytes, _ERROR_BYTES):
            more = await lent.wire.receive(limit_bytes - len(raw))
            raw += more
            unframed = unchunked(raw) if head.chunked else None
            if unframed is not None:
                whole = True
                return unframed[0]
            if not more:
                return raw
        whole = head.length_bytes == len(raw)
        return raw
    finally:
        lent.give_back(reusable=whole and head.persists)
