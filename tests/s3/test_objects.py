"""Objects through boto3: read, write, copy, delete, upload in parts, tag, list."""

import hashlib
from typing import Any

import pytest

from tests.s3.running import Running, call
from tests.s3.test_endpoint import refused

MIB = 1024**2


async def put(s3: Any, key: str, body: bytes = b"0123456789", **more: Any) -> Any:
    return await call(s3.put_object, Bucket="train", Key=key, Body=body, **more)


async def get(s3: Any, key: str, **more: Any) -> tuple[Any, bytes]:
    answer = await call(s3.get_object, Bucket="train", Key=key, **more)
    return answer, await call(answer["Body"].read)


# Reading and writing


async def test_an_object_comes_back_as_it_went(s3: Any) -> None:
    described = {
        "ContentType": "text/x",
        "CacheControl": "no-store",
        "ContentDisposition": "inline",
        "ContentLanguage": "de",
        "Metadata": {"a": "1", "b": "zwei"},
        "StorageClass": "STANDARD_IA",
        "WebsiteRedirectLocation": "/other",
    }
    written = await put(s3, "a/b c+d/€", b"hello", **described)
    assert written["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    for answer in (
        (await get(s3, "a/b c+d/€"))[0],
        await call(s3.head_object, Bucket="train", Key="a/b c+d/€"),
    ):
        assert {name: answer[name] for name in described} == described
        assert answer["ContentLength"] == 5
        assert answer["AcceptRanges"] == "bytes"
        assert answer["ETag"] == written["ETag"]
    assert (await get(s3, "a/b c+d/€"))[1] == b"hello"


async def test_an_object_without_a_type_is_binary(node: Running, s3: Any) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", {}, b"x"))
    assert (await wire.reply()).status == 200
    answer, _ = await get(s3, "a")
    assert answer["ContentType"] == "binary/octet-stream"


@pytest.mark.parametrize(
    "key", ["//x//", "a/../b", ".", "..", "a//b", "a\u0001b", "ä\U0001f600", "a%2Fb"]
)
async def test_odd_keys_are_keys_like_any_other(s3: Any, key: str) -> None:
    await put(s3, key, key.encode())
    assert (await get(s3, key))[1] == key.encode()
    listed = await call(s3.list_objects_v2, Bucket="train")
    assert [entry["Key"] for entry in listed["Contents"]] == [key]
    await call(s3.delete_object, Bucket="train", Key=key)
    assert (await call(s3.list_objects_v2, Bucket="train"))["KeyCount"] == 0


@pytest.mark.parametrize(
    ("asked", "answered", "body"),
    [
        ("bytes=2-4", "bytes 2-4/10", b"234"),
        ("bytes=8-", "bytes 8-9/10", b"89"),
        ("bytes=-3", "bytes 7-9/10", b"789"),
        ("bytes=5-99999999999999999999", "bytes 5-9/10", b"56789"),
        ("bytes=-99", "bytes 0-9/10", b"0123456789"),
    ],
)
async def test_a_range_is_a_partial_answer(s3: Any, asked: str, answered: str, body: bytes) -> None:
    await put(s3, "a")
    answer, received = await get(s3, "a", Range=asked, ChecksumMode="ENABLED")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert (answer["ContentRange"], received) == (answered, body)
    assert "ChecksumCRC32" not in answer
    head = await call(s3.head_object, Bucket="train", Key="a", Range=asked)
    assert (head["ContentRange"], head["ContentLength"]) == (answered, len(body))


@pytest.mark.parametrize(
    "asked", ["bytes=4-2", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4", "bytes=-"]
)
async def test_a_range_that_is_none_is_ignored(s3: Any, asked: str) -> None:
    await put(s3, "a")
    assert (await get(s3, "a", Range=asked))[1] == b"0123456789"


async def test_a_range_past_the_end_is_not_satisfiable(s3: Any) -> None:
    await put(s3, "a")
    await put(s3, "empty", b"")
    for key, asked in (("a", "bytes=10-"), ("a", "bytes=-0"), ("empty", "bytes=0-")):
        with refused("InvalidRange", 416):
            await get(s3, key, Range=asked)
    with refused("InvalidRequest", 400):
        await get(s3, "a", Range="bytes=0-1", PartNumber=1)


async def test_reads_may_have_conditions(s3: Any) -> None:
    etag = (await put(s3, "a"))["ETag"]
    await get(s3, "a", IfMatch=etag)
    await get(s3, "a", IfNoneMatch='"other"')
    with refused("PreconditionFailed", 412):
        await get(s3, "a", IfMatch='"other"')
    with refused("304", 304):
        await get(s3, "a", IfNoneMatch=etag)
    with refused("304", 304):
        await call(s3.head_object, Bucket="train", Key="a", IfNoneMatch=etag)
    with refused("NoSuchKey", 404):
        await get(s3, "missing", IfMatch=etag)


async def test_a_304_names_the_version_and_leaves_the_connection_sane(
    node: Running, s3: Any
) -> None:
    etag = (await put(s3, "a"))["ETag"]
    wire = await node.connect()
    await wire.send(
        node.signed("GET", "/train/a", {"If-None-Match": etag}) + node.signed("GET", "/train/a")
    )
    reply = await wire.reply()
    assert (reply.status, reply.headers["etag"]) == (304, etag)
    assert reply.headers["last-modified"]
    assert "content-length" not in reply.headers
    assert (await wire.reply()).body == b"0123456789"


async def test_writes_may_have_conditions(s3: Any) -> None:
    etag = (await put(s3, "a", IfNoneMatch="*"))["ETag"]
    with refused("PreconditionFailed", 412):
        await put(s3, "a", IfNoneMatch="*")
    with refused("PreconditionFailed", 412):
        await put(s3, "a", IfMatch='"other"')
    await put(s3, "a", b"new", IfMatch=etag)
    with refused("NoSuchKey", 404):
        await put(s3, "missing", IfMatch=etag)
    with refused("NotImplemented", 501):
        await put(s3, "a", IfNoneMatch=etag)
    assert (await get(s3, "a"))[1] == b"new"


async def test_answer_headers_may_be_overridden(s3: Any) -> None:
    await put(s3, "a")
    answer, _ = await get(
        s3, "a", ResponseContentType="x/y", ResponseContentDisposition="attachment"
    )
    assert (answer["ContentType"], answer["ContentDisposition"]) == ("x/y", "attachment")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
async def test_checksums_are_checked_kept_and_returned_when_asked(s3: Any, algorithm: str) -> None:
    field = f"Checksum{algorithm}"
    written = await put(s3, "a", ChecksumAlgorithm=algorithm)
    answer, _ = await get(s3, "a", ChecksumMode="ENABLED")
    assert answer[field] == written[field]
    assert answer["ChecksumType"] == "FULL_OBJECT"
    wrong = {field: written[field]}
    with refused("BadDigest", 400):
        await put(s3, "b", b"something else", **wrong)
    with refused("NoSuchKey", 404):
        await get(s3, "b")


async def test_checksums_are_not_returned_unasked(node: Running, s3: Any) -> None:
    await put(s3, "a")
    wire = await node.connect()
    await wire.send(node.signed("GET", "/train/a"))
    assert not [name for name in (await wire.reply()).headers if "checksum" in name]
    await wire.send(node.signed("GET", "/train/a", {"x-amz-checksum-mode": "enabled"}))
    assert (await wire.reply()).headers["x-amz-checksum-crc32"]
    await wire.send(node.signed("GET", "/train/a", {"x-amz-checksum-mode": "perhaps"}))
    assert (await wire.reply()).code == "InvalidRequest"


async def test_a_wrong_md5_is_a_bad_digest_and_a_broken_one_invalid(s3: Any) -> None:
    with refused("BadDigest", 400):
        await put(s3, "a", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")
    with refused("InvalidDigest", 400):
        await put(s3, "a", ContentMD5="nonsense")


async def test_metadata_over_2_kib_is_too_large(s3: Any) -> None:
    with refused("MetadataTooLarge", 400):
        await put(s3, "a", Metadata={"a": "x" * 2048})


async def test_a_key_over_1024_bytes_is_too_long(s3: Any) -> None:
    for method in (s3.get_object, s3.delete_object):
        with refused("KeyTooLongError", 400):
            await call(method, Bucket="train", Key="k" * 1025)


async def test_attributes_of_an_object(s3: Any) -> None:
    await put(s3, "a", ChecksumAlgorithm="SHA256")
    answer = await call(
        s3.get_object_attributes,
        Bucket="train",
        Key="a",
        ObjectAttributes=["ETag", "Checksum", "ObjectSize", "StorageClass"],
    )
    assert answer["ETag"] == hashlib.md5(b"0123456789").hexdigest()
    assert answer["Checksum"]["ChecksumSHA256"]
    assert (answer["ObjectSize"], answer["StorageClass"]) == (10, "STANDARD")
    with refused("InvalidArgument", 400):
        await call(s3.get_object_attributes, Bucket="train", Key="a", ObjectAttributes=["Colour"])


# Copies


async def test_a_copy_keeps_or_replaces_metadata_and_tags(s3: Any) -> None:
    await put(s3, "a", ContentType="x/y", Metadata={"k": "v"}, Tagging="t=1")
    source = {"Bucket": "train", "Key": "a"}
    kept = await call(s3.copy_object, Bucket="train", Key="b c", CopySource=source)
    assert kept["CopyObjectResult"]["ETag"]
    answer, body = await get(s3, "b c")
    assert (answer["ContentType"], answer["Metadata"], body) == ("x/y", {"k": "v"}, b"0123456789")
    tags = await call(s3.get_object_tagging, Bucket="train", Key="b c")
    assert tags["TagSet"] == [{"Key": "t", "Value": "1"}]
    await call(
        s3.copy_object,
        Bucket="train",
        Key="c",
        CopySource=source,
        MetadataDirective="REPLACE",
        Metadata={"n": "w"},
        TaggingDirective="REPLACE",
        Tagging="u=2",
    )
    answer, _ = await get(s3, "c")
    assert (answer["ContentType"], answer["Metadata"]) == ("binary/octet-stream", {"n": "w"})
    tags = await call(s3.get_object_tagging, Bucket="train", Key="c")
    assert tags["TagSet"] == [{"Key": "u", "Value": "2"}]


async def test_a_copy_to_itself_must_change_something(s3: Any) -> None:
    await put(s3, "a", Metadata={"k": "v"})
    itself = {"Bucket": "train", "Key": "a", "CopySource": {"Bucket": "train", "Key": "a"}}
    with refused("InvalidRequest", 400):
        await call(s3.copy_object, **itself)
    await call(s3.copy_object, **itself, StorageClass="STANDARD_IA")
    answer, _ = await get(s3, "a")
    assert (answer["Metadata"], answer["StorageClass"]) == ({"k": "v"}, "STANDARD_IA")
    await call(s3.copy_object, **itself, MetadataDirective="REPLACE", Metadata={"k": "w"})
    assert (await get(s3, "a"))[0]["Metadata"] == {"k": "w"}


async def test_a_copy_may_have_conditions(s3: Any) -> None:
    etag = (await put(s3, "a"))["ETag"]
    copy = {"Bucket": "train", "Key": "b", "CopySource": {"Bucket": "train", "Key": "a"}}
    with refused("PreconditionFailed", 412):
        await call(s3.copy_object, **copy, CopySourceIfMatch='"other"')
    with refused("PreconditionFailed", 412):
        await call(s3.copy_object, **copy, CopySourceIfNoneMatch=etag)
    await call(s3.copy_object, **copy, CopySourceIfMatch=etag)
    copy["CopySource"] = {"Bucket": "train", "Key": "missing"}
    with refused("NoSuchKey", 404):
        await call(s3.copy_object, **copy)


# Deletes


async def test_deleting_twice_is_no_error(s3: Any) -> None:
    await put(s3, "a")
    for _ in range(2):
        answer = await call(s3.delete_object, Bucket="train", Key="a")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204
    with refused("NoSuchKey", 404):
        await get(s3, "a")


async def test_a_delete_of_many_is_accepted_with_a_checksum_or_an_md5(
    node: Running, s3: Any
) -> None:
    for key in "abc":
        await put(s3, key)
    objects = [{"Key": "a"}, {"Key": "missing"}]
    answer = await call(s3.delete_objects, Bucket="train", Delete={"Objects": objects})
    assert [entry["Key"] for entry in answer["Deleted"]] == ["a", "missing"]
    quiet = {"Objects": [{"Key": "b"}], "Quiet": True}
    assert "Deleted" not in await call(s3.delete_objects, Bucket="train", Delete=quiet)
    body = b"<Delete><Object><Key>c</Key></Object></Delete>"
    wire = await node.connect()
    await wire.send(node.signed("POST", "/train?delete", {}, body))
    assert (await wire.reply()).code == "InvalidRequest"
    md5 = "A1aSzYcvYnBqoPcrpXaVFw=="
    await wire.send(node.signed("POST", "/train?delete", {"Content-MD5": md5}, body))
    assert (await wire.reply()).code == "BadDigest"
    assert (await get(s3, "c"))[1] == b"0123456789"


async def test_a_delete_may_name_the_etag_it_means(s3: Any) -> None:
    etag = (await put(s3, "a"))["ETag"]
    objects = [{"Key": "a", "ETag": '"other"'}]
    answer = await call(s3.delete_objects, Bucket="train", Delete={"Objects": objects})
    assert [entry["Code"] for entry in answer["Errors"]] == ["PreconditionFailed"]
    with refused("PreconditionFailed", 412):
        await call(s3.delete_object, Bucket="train", Key="a", IfMatch='"other"')
    await call(s3.delete_object, Bucket="train", Key="a", IfMatch=etag)


# Parts


async def test_an_upload_in_parts_becomes_one_object(s3: Any) -> None:
    where = {"Bucket": "train", "Key": "big"}
    created = await call(
        s3.create_multipart_upload, **where, ContentType="x/y", ChecksumAlgorithm="CRC32"
    )
    where["UploadId"] = created["UploadId"]
    bodies = [b"a" * 5 * MIB, b"b" * 5 * MIB, b"c" * 10]
    parts = []
    for number, body in enumerate(bodies, 1):
        sent = await call(
            s3.upload_part, **where, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32"
        )
        part = {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]}
        parts.append(part)
    uploads = await call(s3.list_multipart_uploads, Bucket="train")
    assert [entry["UploadId"] for entry in uploads["Uploads"]] == [created["UploadId"]]
    first = await call(s3.list_parts, **where, MaxParts=2)
    assert [part["PartNumber"] for part in first["Parts"]] == [1, 2]
    assert (first["IsTruncated"], first["NextPartNumberMarker"]) == (True, 2)
    with refused("InvalidPartOrder", 400):
        await call(s3.complete_multipart_upload, **where, MultipartUpload={"Parts": parts[::-1]})
    wrong = [{**parts[0], "ETag": '"' + "0" * 32 + '"'}]
    with refused("InvalidPart", 400):
        await call(s3.complete_multipart_upload, **where, MultipartUpload={"Parts": wrong})
    done = await call(s3.complete_multipart_upload, **where, MultipartUpload={"Parts": parts})
    assert done["ETag"].endswith('-3"')
    assert done["ChecksumCRC32"].endswith("-3")
    assert done["Location"].endswith("/train/big")
    answer, body = await get(s3, "big")
    assert (answer["ContentType"], body == b"".join(bodies)) == ("x/y", True)
    answer, body = await get(s3, "big", PartNumber=3)
    assert (body, answer["PartsCount"]) == (b"c" * 10, 3)
    attributes = await call(
        s3.get_object_attributes, Bucket="train", Key="big", ObjectAttributes=["ObjectParts"]
    )
    assert attributes["ObjectParts"]["TotalPartsCount"] == 3
    with refused("InvalidPartNumber", 416):
        await get(s3, "big", PartNumber=4)
    with refused("NoSuchUpload", 404):
        await call(s3.list_parts, **where)


async def test_a_part_may_be_copied_and_an_upload_aborted(s3: Any) -> None:
    await put(s3, "a")
    where = {"Bucket": "train", "Key": "b"}
    where["UploadId"] = (await call(s3.create_multipart_upload, **where))["UploadId"]
    copied = await call(
        s3.upload_part_copy,
        **where,
        PartNumber=1,
        CopySource={"Bucket": "train", "Key": "a"},
        CopySourceRange="bytes=2-4",
    )
    etag = copied["CopyPartResult"]["ETag"]
    assert etag == f'"{hashlib.md5(b"234").hexdigest()}"'
    for number in (0, 10_001):
        with refused("InvalidArgument", 400):
            await call(s3.upload_part, **where, PartNumber=number, Body=b"")
    await call(s3.abort_multipart_upload, **where)
    with refused("NoSuchUpload", 404):
        await call(s3.upload_part, **where, PartNumber=1, Body=b"")
    with refused("NoSuchKey", 404):
        await get(s3, "b")


async def test_a_conditional_completion_loses_to_what_is_there(s3: Any) -> None:
    where = {"Bucket": "train", "Key": "a"}
    where["UploadId"] = (await call(s3.create_multipart_upload, **where))["UploadId"]
    sent = await call(s3.upload_part, **where, PartNumber=1, Body=b"x")
    await put(s3, "a")
    parts = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]}
    with refused("PreconditionFailed", 412):
        await call(s3.complete_multipart_upload, **where, MultipartUpload=parts, IfNoneMatch="*")
    assert (await get(s3, "a"))[1] == b"0123456789"


async def test_a_completion_may_say_how_large_the_whole_is(s3: Any) -> None:
    where = {"Bucket": "train", "Key": "a"}
    where["UploadId"] = (await call(s3.create_multipart_upload, **where))["UploadId"]
    sent = await call(s3.upload_part, **where, PartNumber=1, Body=b"123")
    parts = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]}
    for wrong in (2, 10**18, -1):
        with refused("InvalidRequest", 400):
            await call(
                s3.complete_multipart_upload, **where, MultipartUpload=parts, MpuObjectSize=wrong
            )
    await call(s3.complete_multipart_upload, **where, MultipartUpload=parts, MpuObjectSize=3)
    assert (await get(s3, "a"))[1] == b"123"


# Tags


async def test_tags_are_put_read_and_deleted(s3: Any) -> None:
    where = {"Bucket": "train", "Key": "a"}
    await put(s3, "a", Tagging="a=1&b=x%20y")
    tags = (await call(s3.get_object_tagging, **where))["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "x y"}]
    await call(s3.put_object_tagging, **where, Tagging={"TagSet": [{"Key": "c", "Value": ""}]})
    tags = (await call(s3.get_object_tagging, **where))["TagSet"]
    assert tags == [{"Key": "c", "Value": ""}]
    await call(s3.delete_object_tagging, **where)
    assert (await call(s3.get_object_tagging, **where))["TagSet"] == []
    many = {"TagSet": [{"Key": str(number), "Value": ""} for number in range(11)]}
    with refused("BadRequest", 400):
        await call(s3.put_object_tagging, **where, Tagging=many)
    with refused("NoSuchKey", 404):
        await call(s3.get_object_tagging, Bucket="train", Key="missing")


async def test_a_bucket_has_tags_too(s3: Any) -> None:
    tagging = {"TagSet": [{"Key": "team", "Value": "vision"}]}
    await call(s3.put_bucket_tagging, Bucket="train", Tagging=tagging)
    assert (await call(s3.get_bucket_tagging, Bucket="train"))["TagSet"] == tagging["TagSet"]
    await call(s3.delete_bucket_tagging, Bucket="train")
    with refused("NoSuchTagSet", 404):
        await call(s3.get_bucket_tagging, Bucket="train")


# Listings


async def test_listings_divide_and_go_on(s3: Any) -> None:
    keys = ["a", "b/1", "b/2", "c d+e", "z/ä/1", "ä"]
    for key in keys:
        await put(s3, key)
    seen: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = await call(s3.list_objects_v2, Bucket="train", MaxKeys=1, Delimiter="/", **token)
        assert page["KeyCount"] == 1
        seen += [entry["Key"] for entry in page.get("Contents", [])]
        seen += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    assert seen == ["a", "b/", "c d+e", "z/", "ä"]
    page = await call(s3.list_objects_v2, Bucket="train", StartAfter="b/1", FetchOwner=True)
    assert [entry["Key"] for entry in page["Contents"]] == keys[2:]
    assert page["Contents"][0]["Owner"]["ID"]
    page = await call(s3.list_objects_v2, Bucket="train", Prefix="b/")
    assert [entry["Key"] for entry in page["Contents"]] == ["b/1", "b/2"]
    with refused("InvalidArgument", 400):
        await call(s3.list_objects_v2, Bucket="train", ContinuationToken="garbage")


async def test_the_first_version_of_listings_goes_on_by_marker(s3: Any) -> None:
    for key in ("a", "b/1", "c"):
        await put(s3, key)
    page = await call(s3.list_objects, Bucket="train", MaxKeys=2, Delimiter="/")
    assert (page["IsTruncated"], page["NextMarker"]) == (True, "b/")
    page = await call(s3.list_objects, Bucket="train", Marker="b/", Delimiter="/")
    assert [entry["Key"] for entry in page["Contents"]] == ["c"]


async def test_versions_of_a_directory_are_null(s3: Any) -> None:
    await put(s3, "a")
    page = await call(s3.list_object_versions, Bucket="train")
    assert [(entry["Key"], entry["VersionId"]) for entry in page["Versions"]] == [("a", "null")]
    assert (await get(s3, "a", VersionId="null"))[1] == b"0123456789"
    with refused("InvalidArgument", 400):
        await call(s3.list_object_versions, Bucket="train", VersionIdMarker="null")


@pytest.mark.parametrize("listing", ["list_objects", "list_objects_v2", "list_object_versions"])
async def test_page_sizes_have_bounds(node: Running, s3: Any, listing: str) -> None:
    await put(s3, "a")
    method = getattr(s3, listing)
    empty = await call(method, Bucket="train", MaxKeys=0)
    assert (empty["IsTruncated"], empty["MaxKeys"]) == (False, 0)
    assert "Contents" not in empty
    assert (await call(method, Bucket="train", MaxKeys=5000))["MaxKeys"] == 1000
    with refused("InvalidArgument", 400):
        await call(method, Bucket="train", MaxKeys=-1)
    with refused("NoSuchBucket", 404):
        await call(method, Bucket="missing", MaxKeys=0)
    with refused("InvalidArgument", 400):
        await call(method, Bucket="train", EncodingType="base64")
