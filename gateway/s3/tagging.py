"""Tags of objects and buckets.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObjectTagging.html
"""

from gateway.s3 import render
from gateway.s3.answer import Answer, empty_answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.tags import BUCKET_LIMIT, OBJECT_LIMIT
from gateway.s3.xml import parse_tagging


async def get_object_tagging(call: Call) -> Answer:
    version_id = call.operation.version_id
    tags = await call.service.get_tags(call.operation.bucket, call.operation.key, version_id)
    return xml_answer(render.tagging(tags), headers=_version(version_id))


async def put_object_tagging(call: Call) -> Answer:
    version_id = call.operation.version_id
    document, _ = await call.document()
    tags = parse_tagging(document, OBJECT_LIMIT)
    await call.service.put_tags(call.operation.bucket, call.operation.key, version_id, tags)
    return empty_answer(headers=_version(version_id))


async def delete_object_tagging(call: Call) -> Answer:
    version_id = call.operation.version_id
    await call.service.delete_tags(call.operation.bucket, call.operation.key, version_id)
    return empty_answer(204, _version(version_id))


async def get_bucket_tagging(call: Call) -> Answer:
    return xml_answer(render.tagging(await call.service.get_bucket_tags(call.operation.bucket)))


async def put_bucket_tagging(call: Call) -> Answer:
    document, _ = await call.document()
    tags = parse_tagging(document, BUCKET_LIMIT)
    await call.service.put_bucket_tags(call.operation.bucket, tags)
    return empty_answer(204)


async def delete_bucket_tagging(call: Call) -> Answer:
    await call.service.delete_bucket_tags(call.operation.bucket)
    return empty_answer(204)


def _version(version_id: str | None) -> dict[str, str]:
    return {} if version_id is None else {"x-amz-version-id": version_id}
