"""The answers that say no: an S3 error as its status, headers and XML."""

from gateway.errors import S3Error
from gateway.s3 import render
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.record import Record, Recorder


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
