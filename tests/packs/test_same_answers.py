"""Every way to ask for an object is answered the same before packing and after."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.packs.conftest import OF_THE_ANSWER, Digest, Packing, differences
from tests.s3.running import Running, call

LARGE = bytes(range(251)) * 4000
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "range": {"Range": "bytes=5-9"},
    "suffix": {"Range": "bytes=-7"},
    "open range": {"Range": "bytes=3-"},
    "range past the end": {"Range": "bytes=2-99999999"},
    "no such range": {"Range": "bytes=99999999-"},
    "nonsense for a range": {"Range": "bytes=9-5"},
    "part 1": {"PartNumber": 1},
    "part 2": {"PartNumber": 2},
    "checksums": {"ChecksumMode": "ENABLED"},
    "checksums of a range": {"ChecksumMode": "ENABLED", "Range": "bytes=0-3"},
    "if another": {"IfMatch": '"another"'},
    "if not another": {"IfNoneMatch": '"another"'},
    "if there is none": {"IfNoneMatch": "*"},
    "if changed long ago": {"IfModifiedSince": "2001-01-01T00:00:00Z"},
    "if not since": {"IfUnmodifiedSince": "2001-01-01T00:00:00Z"},
    "told otherwise": {
        "ResponseContentType": "z/z",
        "ResponseCacheControl": "none",
        "ResponseContentDisposition": "attachment",
    },
}


async def answers(node: Running, bucket: str, keys: list[str]) -> dict[str, Any]:
    s3 = node.client(response_checksum_validation="when_required")
    found: dict[str, Any] = {}
    for key in keys:
        for name, arguments in WAYS.items():
            for method in (s3.get_object, s3.head_object):
                kind = method.__name__
                if kind == "head_object" and "Response" in str(arguments):
                    continue
                at = f"{kind} {key} {name}"
                try:
                    got = await call(method, Bucket=bucket, Key=key, **arguments)
                except ClientError as error:
                    # A request's id is not part of what it says.
                    meta = error.response["ResponseMetadata"]
                    found[at] = {"status": meta["HTTPStatusCode"], "error": error.response["Error"]}
                    continue
                meta = got["ResponseMetadata"]
                found[at] = {
                    "status": meta["HTTPStatusCode"],
                    "headers": {
                        header: value
                        for header, value in meta["HTTPHeaders"].items()
                        if not header.startswith("x-feedrack") and header not in OF_THE_ANSWER
                    },
                    "body": Digest(await call(got["Body"].read)) if "Body" in got else None,
                }
    s3.close()
    return found


@pytest.mark.parametrize("deleted", [False, True])
async def test_answers_are_those_of_unpacked_objects(packing: Packing, deleted: bool) -> None:
    keys = ["p/small", "p/empty", "p/large"]
    for key, data in zip(keys, (b"0123456789", b"", LARGE), strict=True):
        packing.put(key, data, content_type="x/y", x_amz_meta_a="b", cache_control="no")
    if packing.behind is not None:
        keys.append("p/summed")
        packing.behind.put_object(
            Bucket=packing.name, Key="p/summed", Body=b"summed", ChecksumAlgorithm="SHA256"
        )
    async with packing.node("before") as node:
        before = await answers(node, packing.name, keys)
    packing.pack(shard_bytes=2 * 1024**2)
    if deleted:
        assert packing.delete_originals() == len(keys)
    async with packing.node("after") as node:
        for _ in range(2):
            assert not differences(await answers(node, packing.name, keys), before)
