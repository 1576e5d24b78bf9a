"""The one pipeline of the S3 face, and the one place where all errors meet.

match → authenticate → authorise → call → render. Whatever is raised on the way becomes an S3
error: those that are one as they are, an unreachable tier as 503, everything else as a logged 500
that tells the client nothing.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from gateway.auth.request import RequestHead
from gateway.config import Config
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.errors import RequestHeaderSectionTooLarge, S3Error
from gateway.s3 import (
    batch,
    buckets,
    copy_object,
    delete,
    get_object,
    listing,
    multipart,
    packs,
    put_object,
    relay,
    tagging,
)
from gateway.s3.answer import Answer
from gateway.s3.call import Call, ClientGoneError, Exchange
from gateway.s3.entry import Entry
from gateway.s3.rdma import RdmaFace
from gateway.s3.record import Record, Recorder
from gateway.s3.refusals import Refusals, s3_error, tell_failure
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics

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
    "GetObjects": batch.get_objects,
    "GetPacks": packs.get_packs,
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


class Endpoint:
    """Answers every S3 request of this node: by `service`, or by `past_packs` where it asks so."""

    def __init__(
        self,
        config: Config,
        service: ObjectService,
        past_packs: ObjectService,
        entry: Entry,
        recorder: Recorder,
        metrics: Metrics,
        rdma: RdmaFace,
    ) -> None:
        self._config = config.s3
        self._rdma = rdma
        self._handlers: dict[str, Handler] = {**_HANDLERS, **rdma.handlers}
        self._service = service
        self._past_packs = past_packs
        self._entry = entry
        self._recorder = recorder
        self._refusals = Refusals(recorder)
        self._metrics = metrics

    async def serve(self, exchange: Exchange) -> None:
        """Answers one request; never raises but when it is cancelled."""
        record = self._recorder.begin()
        self._metrics.requests_in_flight.inc()
        try:
            await self._attempt(exchange, record)
        finally:
            self._metrics.requests_in_flight.dec()
            self._recorder.tell(
                record,
                remote=exchange.remote,
                received_bytes=exchange.received_bytes,
                sent_bytes=exchange.sent_bytes,
            )

    async def _attempt(self, exchange: Exchange, record: Record) -> None:
        try:
            answer = await self._answer(exchange, record)
            try:
                await exchange.send(self._recorder.sign_off(answer, record))
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
            tell_failure(error, request_id=record.request_id)
            await self._send_failure(exchange, record, s3_error(error))

    async def _answer(self, exchange: Exchange, record: Record) -> Answer:
        head = exchange.head
        if _head_bytes(head) > self._config.limits.header_bytes:
            raise RequestHeaderSectionTooLarge
        request = self._entry.admit(head, record, secure=exchange.secure)
        service = self._past_packs if request.past_packs else self._service
        call = Call(exchange, request, service=service, config=self._config)
        writes = relay.relayed(call)
        handler: Handler | None
        if writes is not None:
            handler = partial(relay.relay, writes=writes)
        else:
            handler = self._handlers.get(call.operation.name)
        if handler is None:
            raise NotImplementedS3(fields={"Operation": call.operation.name})
        if self._rdma.concerns(call):
            return await self._rdma.answer(call, handler, record, relayed=writes is not None)
        return await handler(call)

    async def _send_failure(self, exchange: Exchange, record: Record, failure: S3Error) -> None:
        record.tier = None
        try:
            answer = self._refusals.answer(failure, record, record.operation.resource)
            await exchange.send(self._recorder.sign_off(answer, record))
        except ClientGoneError:
            record.broken = "client gone"
            exchange.abort()


def _head_bytes(head: RequestHead) -> int:
    lines = sum(len(name) + len(value) + 4 for name, value in head.headers)
    return len(head.path) + len(head.query) + lines
