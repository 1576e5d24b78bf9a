"""The answers that say no: an S3 error as its status, headers and XML."""

import structlog

from gateway.errors import (
    InternalError,
    S3Error,
    ServiceUnavailable,
    TierUnavailable,
    VersionChanged,
)
from gateway.s3 import render
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.record import Record, Recorder

log = structlog.get_logger()


class Refusals:
    """Turns errors into answers, and tells of those that no request belongs to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def answer(self, failure: S3Error, record: Record, resource: str) -> Answer:
        """The answer to a request that failed; the record learns of it."""
        record.code = failure.code
        if failure.status == 304:
            return Answer(status=304, headers=failure.headers)
        body = render.error(
            failure, resource=resource, request_id=record.request_id, host_id=self._recorder.node
        )
        return xml_answer(body, status=failure.status, headers=failure.headers)

    def refuse(self, failure: S3Error, remote: str) -> Answer:
        """The answer to what never became a request; counted and logged as one all the same."""
        record = self._recorder.begin()
        answer = self._recorder.sign_off(self.answer(failure, record, "/"), record)
        self._recorder.tell(record, remote=remote, received_bytes=0, sent_bytes=len(answer.body))
        return answer


def s3_error(error: Exception) -> S3Error:
    """The S3 error that stands for whatever was raised."""
    match error:
        case S3Error():
            return error
        case TierUnavailable():
            return ServiceUnavailable(headers={"retry-after": str(error.retry_after_seconds)})
        case VersionChanged():
            # It was replaced again and again while we looked; the next try may find it at rest.
            return ServiceUnavailable(headers={"retry-after": "1"})
        case _:
            return InternalError()


def tell_failure(error: Exception, **told: str) -> None:
    """Logs an error that is ours or an origin's. `told`: what the line says of the request."""
    match error:
        case S3Error():
            if error.status >= 500 and error.status != 501:
                log.warning("request failed", **told, reason=str(error))
        case TierUnavailable():
            log.warning("tier unavailable", **told, reason=str(error))
        case VersionChanged():
            pass
        case _:
            log.error("internal error", **told, exc_info=error)
