"""PutObject.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html
"""

from gateway.s3.answer import Answer, empty_answer
from gateway.s3.call import Call
from gateway.s3.headers import check_directory, object_headers, put_headers, write_conditions


async def put_object(call: Call) -> Answer:
    """Stores the verified body; nothing where it does not verify."""
    headers = object_headers(call.head)
    if not call.relays:
        check_directory(headers)
    conditions = write_conditions(call.head)
    body = await call.body()
    result = await call.service.put(
        call.operation.bucket, call.operation.key, body, headers, conditions
    )
    return empty_answer(headers=put_headers(result))
