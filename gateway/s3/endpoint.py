"""The one pipeline of the S3 face, and the one place where all errors meet.

match → authenticate → authorise → call → render. Whatever is raised on the way becomes an S3
error: those that are one as they are, an unreachable tier as 503, everything else as a logged 500
that tells the client nothing.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec import Struct

from gateway.auth.policy import needed_besides
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.config import Config
from gateway.errors import (
    InternalError,
    RequestHeaderSectionTooLarge,
    S3Error,
    ServiceUnavailable,
    TierUnavailable,
    VersionChanged,
)
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.s3 import (
    buckets,
    copy_object,
    delete,
    get_object,
    listing,
    multipart,
    put_object,
    relay,
    render,
    tagging,
)
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.call import Call, ClientGoneError, Exchange
from gateway.s3.headers import with_hoisted
from gateway.s3.operation import Operation
from gateway.s3.route import match
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestRecord, RequestReporter

log = structlog.get_logger()

Handler = Callable[[Call], Awaitable[Answer]]

_HANDLERS: dict[str, Handler] = {
    "AbortMultipartUpload": multipart.abort_multipart_upload,
    "CompleteMultipartUpload": multipart.complete_multipart_upload,
    "CopyObject": copy_object.copy_object,
    "CreateBucket": buckets.create_bucket,
    "CreateMultipartUpload": multipart.create_multipart_upload,
    "DeleteBucket": buckets.delete_bucket,
    "DeleteBucketTagging": tagging.delete_bucket_tagging,
    "DeleteObject": delete.delete_object,
    "DeleteObjectTagging": tagging.delete_object_tagging,
    "DeleteObjects": delete.delete_objects,
    "GetBucketAcl": buckets.get_acl,
    "GetBucketLocation": buckets.get_bucket_location,
    "GetBucketTagging": tagging.get_bucket_tagging,
    "GetBucketVersioning": buckets.get_bucket_versioning,
    "GetObject": get_object.get_object,
    "GetObjectAcl": buckets.get_acl,
    "GetObjectAttributes": get_object.get_object_attributes,
    "GetObjectTagging": tagging.get_object_tagging,
    "HeadBucket": buckets.head_bucket,
    "HeadObject": get_object.head_object,
    "ListBuckets": buckets.list_buckets,
    "ListMultipartUploads": multipart.list_multipart_uploads,
    "ListObjectVersions": listing.list_object_versions,
    "ListObjects": listing.list_objects,
    "ListObjectsV2": listing.list_objects_v2,
    "ListParts": multipart.list_parts,
    "PutBucketAcl": buckets.put_acl,
    "PutBucketTagging": tagging.put_bucket_tagging,
    "PutObject": put_object.put_object,
    "PutObjectAcl": buckets.put_acl,
    "PutObjectTagging": tagging.put_object_tagging,
    "UploadPart": multipart.upload_part,
    "UploadPartCopy": copy_object.upload_part_copy,
    **dict.fromkeys(buckets.UNSET, buckets.unset),
}
_READS = frozenset(("GetObject", "HeadObject"))
_LISTINGS = frozenset(
    ("ListObjects", "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads")
)


class _Record(Struct):
    """What is told of one request afterwards."""

    request_id: str
    began: float
    operation: Operation = Operation("Unknown")
    tenant: str = "anonymous"
    status: int = 0
    code: str | None = None
    tier: str | None = None
    served: Mapping[str, int] = {}
    broken: str | None = None


class Endpoint:
    """Answers every S3 request of this node."""

    def __init__(
        self,
        config: Config,
        service: ObjectService,
        authenticator: Authenticator,
        metrics: Metrics,
    ) -> None:
        self._config = config.s3
        self._node = config.node.id
        self._service = service
        self._authenticator = authenticator
        self._metrics = metrics
        self._reporter = RequestReporter(metrics, config.log)

    async def serve(self, exchange: Exchange) -> None:
        """Answers one request; never raises but when it is cancelled."""
        record = _Record(secrets.token_hex(8).upper(), time.perf_counter())
        self._metrics.requests_in_flight.inc()
        try:
            await self._attempt(exchange, record)
        finally:
            self._metrics.requests_in_flight.dec()
            self._tell(
                record,
                remote=exchange.remote,
                received_bytes=exchange.received_bytes,
                sent_bytes=exchange.sent_bytes,
            )

    def refuse(self, failure: S3Error, remote: str) -> Answer:
        """The answer to what never became a request; counted and logged as one all the same."""
        record = _Record(secrets.token_hex(8).upper(), time.perf_counter())
        answer = self._signed_off(self._failed(failure, record, "/"), record)
        record.status = answer.status
        self._tell(record, remote=remote, received_bytes=0, sent_bytes=len(answer.body))
        return answer

    async def _attempt(self, exchange: Exchange, record: _Record) -> None:
        try:
            answer = await self._answer(exchange, record)
            try:
                await self._send(exchange, record, answer)
            finally:
                await answer.close()
        except ClientGoneError:
            # The client has gone; there is nobody left to tell.
            record.broken = "client gone"
            exchange.abort()
        except Exception as error:
            if exchange.begun:
                record.broken = f"{type(error).__name__}: {error}"
                exchange.abort()
                return
            await self._send_failure(exchange, record, self._s3_error(error, record))

    async def _answer(self, exchange: Exchange, record: _Record) -> Answer:
        head = exchange.head
        if _head_bytes(head) > self._config.limits.header_bytes:
            raise RequestHeaderSectionTooLarge
        meant = with_hoisted(head)
        operation = record.operation = match(meant, self._config.virtual_host_domain)
        identity = self._authenticator.authenticate(head)
        if identity.tenant is not None:
            record.tenant = identity.tenant.name
        call = Call(
            exchange, meant, operation, identity, service=self._service, config=self._config
        )
        _authorise(call)
        writes = relay.relayed(call)
        if writes is not None:
            return await relay.relay(call, writes=writes)
        handler = _HANDLERS.get(operation.name)
        if handler is None:
            raise NotImplementedS3(fields={"Operation": operation.name})
        return await handler(call)

    async def _send(self, exchange: Exchange, record: _Record, answer: Answer) -> None:
        record.status = answer.status
        record.tier = answer.tier
        record.served = answer.served
        await exchange.send(self._signed_off(answer, record))

    def _signed_off(self, answer: Answer, record: _Record) -> Answer:
        """The answer with what every answer tells: who gave it, and to which request."""
        headers = {
            **answer.headers,
            "server": "feedrack",
            "x-amz-request-id": record.request_id,
            "x-feedrack-node": self._node,
        }
        if answer.tier is not None:
            headers["x-feedrack-tier"] = answer.tier
        answer.headers = headers
        return answer

    async def _send_failure(self, exchange: Exchange, record: _Record, failure: S3Error) -> None:
        record.tier = None
        try:
            answer = self._failed(failure, record, record.operation.resource)
            await self._send(exchange, record, answer)
        except ClientGoneError:
            record.broken = "client gone"
            exchange.abort()

    def _failed(self, failure: S3Error, record: _Record, resource: str) -> Answer:
        record.code = failure.code
        if failure.status == 304:
            return Answer(status=304, headers=failure.headers)
        body = render.error(
            failure, resource=resource, request_id=record.request_id, host_id=self._node
        )
        return xml_answer(body, status=failure.status, headers=failure.headers)

    def _s3_error(self, error: Exception, record: _Record) -> S3Error:
        """The S3 error that stands for whatever was raised."""
        if isinstance(error, S3Error):
            if error.status >= 500 and error.status != 501:
                log.warning("request failed", request_id=record.request_id, reason=str(error))
            return error
        if isinstance(error, TierUnavailable):
            log.warning("tier unavailable", request_id=record.request_id, reason=str(error))
            return ServiceUnavailable(headers={"retry-after": str(error.retry_after_seconds)})
        if isinstance(error, VersionChanged):
            # It was replaced again and again while we looked; the next try may find it at rest.
            return ServiceUnavailable(headers={"retry-after": "1"})
        log.error("internal error", request_id=record.request_id, exc_info=error)
        return InternalError()

    def _tell(self, record: _Record, *, remote: str, received_bytes: int, sent_bytes: int) -> None:
        operation = record.operation
        self._reporter.tell(
            RequestRecord(
                operation=operation.name,
                bucket=operation.bucket,
                key=operation.key,
                status=record.status,
                code=record.code,
                tenant=record.tenant,
                bytes_in=received_bytes,
                bytes_out=sent_bytes,
                tier=record.tier,
                seconds=time.perf_counter() - record.began,
                request_id=record.request_id,
                remote=remote,
                broken=record.broken,
                served=record.served,
            )
        )


def _head_bytes(head: RequestHead) -> int:
    lines = sum(len(name) + len(value) + 4 for name, value in head.headers)
    return len(head.path) + len(head.query) + lines


def _authorise(call: Call) -> None:
    """Asks for the operation itself; a DeleteObjects asks for each of its keys later."""
    operation = call.operation
    if operation.name == "ListBuckets":
        return
    if operation.name == "DeleteObjects" and not call.anonymous:
        return
    key = operation.query.get("prefix", "") if operation.name in _LISTINGS else operation.key
    call.authorise(operation.name, operation.bucket, key)
    if operation.name not in _READS:
        for needed in needed_besides(call.head.headers):
            call.authorise(needed, operation.bucket, key)
