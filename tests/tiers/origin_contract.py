"""What every `Origin` must do, whatever it stands on: subclass and give it an `origin`.

A subclass has a fixture named `origin` that gives a started, empty origin; every test makes its
own bucket in it. The tests speak of the protocol's promises only.
"""

import hashlib
from collections.abc import Mapping

import pytest

from gateway.errors import (
    BadDigest,
    BucketNotEmpty,
    EntityTooSmall,
    InvalidPart,
    InvalidPartNumber,
    InvalidPartOrder,
    InvalidRange,
    NoSuchBucket,
    NoSuchKey,
    NoSuchTagSet,
    NoSuchUpload,
    PreconditionFailed,
    VersionChanged,
)
from gateway.model.body import BytesBody
from gateway.model.checksums import checksum, multipart_etag
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import CompletedPart, ListPage, ObjectRef
from gateway.model.ranges import ByteRange
from gateway.tiers.protocol import Origin

ANY = WriteConditions()
ONLY_NEW = WriteConditions(if_none_match_any=True)
PART_BYTES = 5 * 1024**2


class CutBody(BytesBody):
    """A body that breaks after `data`, before its announced end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.length_bytes = len(data) + 1

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await super().read(limit_bytes)
        if not block:
            raise BadDigest
        return block


def md5(data: bytes) -> str:
    """The ETag of a plain upload of `data`."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


async def read_all(origin: Origin, ref: ObjectRef, wanted: ByteRange | None = None) -> bytes:
    """The bytes that an origin answers."""
    opened = await origin.open(ref, wanted=wanted)
    try:
        return b"".join([block async for block in opened.blocks()])
    finally:
        await opened.close()


async def put(
    origin: Origin,
    ref: ObjectRef,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    conditions: WriteConditions = ANY,
) -> str:
    """Stores `data` and hands back its ETag."""
    return (await origin.put(ref, BytesBody(data), headers or {}, conditions)).etag


async def copy(
    origin: Origin,
    source: ObjectRef,
    target: ObjectRef,
    *,
    headers: Mapping[str, str] | None = None,
    tagging: str | None = None,
    source_conditions: Conditions | None = None,
    conditions: WriteConditions = ANY,
) -> str:
    """Copies with everything the caller does not name left as it is."""
    result = await origin.copy(
        source,
        target,
        headers=headers,
        tagging=tagging,
        source_conditions=source_conditions or Conditions(),
        conditions=conditions,
        checksum_algorithm=None,
    )
    return result.etag


async def page(
    origin: Origin,
    bucket: str,
    *,
    prefix: str = "",
    delimiter: str = "",
    after: str = "",
    limit: int = 1000,
) -> ListPage:
    """One page, with a client's defaults."""
    return await origin.list_objects(
        bucket, prefix=prefix, delimiter=delimiter, after=after, limit=limit
    )


async def listed(
    origin: Origin, bucket: str, *, prefix: str = "", delimiter: str = "", limit: int = 1000
) -> list[str]:
    """All keys and common prefixes, page after page, in the order the pages give them."""
    found: list[str] = []
    after = ""
    while True:
        part = await page(
            origin, bucket, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )
        names = [entry.key for entry in part.objects] + list(part.common_prefixes)
        assert len(names) <= limit
        found += sorted(names, key=str.encode)
        if part.next_after is None:
            return found
        after = part.next_after


class OriginContract:
    """The promises of `gateway.tiers.protocol.Origin`."""

    @pytest.fixture
    async def bucket(self, origin: Origin) -> str:
        """An empty bucket of that origin."""
        await origin.create_bucket("contract")
        return "contract"

    @pytest.fixture
    def ref(self, origin: Origin, bucket: str) -> ObjectRef:
        """A key with nothing there yet."""
        return ObjectRef(origin.name, bucket, "some/key.txt")

    # Reading

    async def test_what_was_put_is_read(self, origin: Origin, ref: ObjectRef) -> None:
        assert await put(origin, ref, b"hello world") == md5(b"hello world")
        assert await read_all(origin, ref) == b"hello world"
        info = await origin.head(ref)
        assert (info.etag, info.size_bytes) == (md5(b"hello world"), 11)

    async def test_an_empty_object_is_an_object(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"")
        assert await read_all(origin, ref) == b""
        opened = await origin.open(ref, wanted=ByteRange(0, 10))
        assert opened.range.size_bytes == 0
        await opened.close()

    async def test_a_large_body_comes_in_blocks(self, origin: Origin, ref: ObjectRef) -> None:
        data = bytes(range(256)) * 12_289
        assert await put(origin, ref, data) == md5(data)
        opened = await origin.open(ref)
        blocks = [block async for block in opened.blocks()]
        await opened.close()
        assert b"".join(blocks) == data
        assert all(0 < len(block) <= 1024**2 for block in blocks)
        assert opened.range == ByteRange(0, len(data))

    @pytest.mark.parametrize("stride_bytes", [7_000, 1_000_000, 5_000_000])
    async def test_bytes_are_put_where_the_caller_wants_them(
        self, origin: Origin, ref: ObjectRef, stride_bytes: int
    ) -> None:
        data = bytes(range(256)) * 12_289
        await put(origin, ref, data)
        for wanted in (None, ByteRange(0, 100), ByteRange(1_000_001, 1_900_000)):
            opened = await origin.open(ref, wanted=wanted)
            got = bytearray()
            memory = memoryview(bytearray(stride_bytes))
            while size_bytes := await opened.read_into(memory):
                got += memory[:size_bytes]
            assert await opened.read_into(memory) == 0
            await opened.close()
            assert got == (data if wanted is None else data[wanted.start : wanted.stop])

    async def test_an_empty_object_puts_nothing_anywhere(
        self, origin: Origin, ref: ObjectRef
    ) -> None:
        await put(origin, ref, b"")
        opened = await origin.open(ref)
        assert await opened.read_into(memoryview(bytearray(10))) == 0
        await opened.close()

    async def test_a_range_is_cut_at_the_end(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"0123456789")
        assert await read_all(origin, ref, ByteRange(3, 6)) == b"345"
        opened = await origin.open(ref, wanted=ByteRange(8, 100))
        assert opened.range == ByteRange(8, 10)
        assert opened.info.size_bytes == 10
        assert b"".join([block async for block in opened.blocks()]) == b"89"
        await opened.close()
        await opened.close()

    async def test_a_range_past_the_end_is_refused(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"0123456789")
        with pytest.raises(InvalidRange):
            await origin.open(ref, wanted=ByteRange(10, 11))

    async def test_a_missing_key_is_no_such_key(self, origin: Origin, ref: ObjectRef) -> None:
        with pytest.raises(NoSuchKey):
            await origin.head(ref)
        with pytest.raises(NoSuchKey):
            await origin.open(ref)
        with pytest.raises(NoSuchKey):
            await origin.part_span(ref, 1)

    async def test_a_missing_bucket_is_no_such_bucket(self, origin: Origin) -> None:
        ref = ObjectRef(origin.name, "not-there", "key")
        with pytest.raises(NoSuchBucket):
            await origin.open(ref)
        with pytest.raises(NoSuchBucket):
            await put(origin, ref, b"x")
        with pytest.raises(NoSuchBucket):
            await page(origin, "not-there")
        with pytest.raises(NoSuchBucket):
            await origin.head_bucket("not-there")
        with pytest.raises(NoSuchBucket):
            await origin.delete_bucket("not-there")

    async def test_another_version_than_asked_for_is_a_change(
        self, origin: Origin, ref: ObjectRef
    ) -> None:
        with pytest.raises(VersionChanged):
            await origin.open(ref, if_match=md5(b"old"))
        await put(origin, ref, b"old")
        opened = await origin.open(ref, if_match=md5(b"old"))
        await opened.close()
        await put(origin, ref, b"new")
        with pytest.raises(VersionChanged):
            await origin.open(ref, if_match=md5(b"old"))

    async def test_a_read_ends_with_the_version_it_began_with_or_breaks(
        self, origin: Origin, ref: ObjectRef
    ) -> None:
        await put(origin, ref, b"a" * 3 * 1024**2)
        opened = await origin.open(ref)
        blocks = opened.blocks()
        seen = [await anext(blocks)]
        await put(origin, ref, b"b" * 3 * 1024**2)
        try:
            seen += [block async for block in blocks]
        except VersionChanged:
            pass
        else:
            assert sum(map(len, seen)) == 3 * 1024**2
        await opened.close()
        assert set(b"".join(seen)) == {ord("a")}

    # Writing

    async def test_headers_describe_the_object(self, origin: Origin, ref: ObjectRef) -> None:
        headers = {
            "content-type": "text/x-demo",
            "cache-control": "max-age=5",
            "content-disposition": "inline",
            "content-language": "de",
            "x-amz-meta-colour": "blue",
        }
        await put(origin, ref, b"x", headers)
        assert headers.items() <= (await origin.head(ref)).headers.items()
        opened = await origin.open(ref)
        await opened.close()
        assert headers.items() <= opened.info.headers.items()
        await put(origin, ref, b"x")
        assert "x-amz-meta-colour" not in (await origin.head(ref)).headers

    async def test_checksums_are_kept(self, origin: Origin, ref: ObjectRef) -> None:
        value = checksum("CRC32C", b"data")
        await origin.put(ref, BytesBody(b"data", checksums={"CRC32C": value}), {}, ANY)
        info = await origin.head(ref, checksums=True)
        assert info.checksums == {"CRC32C": value}
        assert info.checksum_type == "FULL_OBJECT"

    async def test_a_broken_body_stores_nothing(self, origin: Origin, ref: ObjectRef) -> None:
        with pytest.raises(BadDigest):
            await origin.put(ref, CutBody(b"half"), {}, ANY)
        with pytest.raises(NoSuchKey):
            await origin.head(ref)
        await put(origin, ref, b"whole")
        with pytest.raises(BadDigest):
            await origin.put(ref, CutBody(b"h" * 3 * 1024**2), {}, ANY)
        assert await read_all(origin, ref) == b"whole"

    async def test_if_none_match_writes_once(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"first", conditions=ONLY_NEW)
        with pytest.raises(PreconditionFailed):
            await put(origin, ref, b"second", conditions=ONLY_NEW)
        assert await read_all(origin, ref) == b"first"

    async def test_if_match_writes_over_that_version_only(
        self, origin: Origin, ref: ObjectRef
    ) -> None:
        with pytest.raises(NoSuchKey):
            await put(origin, ref, b"x", conditions=WriteConditions(if_match=md5(b"x")))
        first = await put(origin, ref, b"first")
        await put(origin, ref, b"second", conditions=WriteConditions(if_match=first))
        with pytest.raises(PreconditionFailed):
            await put(origin, ref, b"third", conditions=WriteConditions(if_match=first))
        assert await read_all(origin, ref) == b"second"

    async def test_a_key_may_be_a_prefix_too(self, origin: Origin, bucket: str) -> None:
        for key in ("a/b", "a", "a/b/c", "a/b/c/d", "x", "x/y"):
            await put(origin, ObjectRef(origin.name, bucket, key), key.encode())
        for key in ("a/b", "a", "a/b/c", "a/b/c/d", "x", "x/y"):
            assert await read_all(origin, ObjectRef(origin.name, bucket, key)) == key.encode()
        assert await listed(origin, bucket) == ["a", "a/b", "a/b/c", "a/b/c/d", "x", "x/y"]
        await origin.delete(ObjectRef(origin.name, bucket, "a/b"), ANY)
        assert await listed(origin, bucket) == ["a", "a/b/c", "a/b/c/d", "x", "x/y"]

    async def test_odd_keys_are_keys(self, origin: Origin, bucket: str) -> None:
        keys = ["folder/", "a//b", "/lead", "//", "ünï/cödé", "💾", "a b+c%20d", "-", "k" * 300]
        for key in keys:
            await put(origin, ObjectRef(origin.name, bucket, key), key.encode())
        for key in keys:
            assert await read_all(origin, ObjectRef(origin.name, bucket, key)) == key.encode()
        assert await listed(origin, bucket) == sorted(keys, key=str.encode)

    # Copying

    async def test_a_copy_keeps_what_it_is_not_told(self, origin: Origin, ref: ObjectRef) -> None:
        target = ObjectRef(origin.name, ref.bucket, "copy")
        await put(origin, ref, b"data", {"x-amz-meta-a": "1", "x-amz-tagging": "t=1"})
        await copy(origin, ref, target)
        assert await read_all(origin, target) == b"data"
        assert (await origin.head(target)).headers["x-amz-meta-a"] == "1"
        assert await origin.get_tags(target) == (("t", "1"),)

    async def test_a_copy_replaces_what_it_is_told(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"data", {"x-amz-meta-a": "1"})
        await copy(origin, ref, ref, headers={"x-amz-meta-b": "2", "content-type": "text/b"})
        headers = (await origin.head(ref)).headers
        assert headers["x-amz-meta-b"] == "2"
        assert headers["content-type"] == "text/b"
        assert "x-amz-meta-a" not in headers
        assert await read_all(origin, ref) == b"data"

    async def test_a_copy_minds_its_conditions(self, origin: Origin, ref: ObjectRef) -> None:
        target = ObjectRef(origin.name, ref.bucket, "copy")
        with pytest.raises(NoSuchKey):
            await copy(origin, ref, target)
        etag = await put(origin, ref, b"data")
        with pytest.raises(PreconditionFailed):
            await copy(origin, ref, target, source_conditions=Conditions(if_match=("other",)))
        with pytest.raises(PreconditionFailed):
            await copy(origin, ref, target, source_conditions=Conditions(if_none_match=(etag,)))
        with pytest.raises(NoSuchKey):
            await origin.head(target)

    # Deleting

    async def test_deleted_is_gone_and_deleting_twice_is_fine(
        self, origin: Origin, ref: ObjectRef
    ) -> None:
        await put(origin, ref, b"x")
        await origin.delete(ref, ANY)
        with pytest.raises(NoSuchKey):
            await origin.head(ref)
        assert (await origin.delete(ref, ANY)).key == ref.key
        assert await listed(origin, ref.bucket) == []

    async def test_many_are_deleted_in_order(self, origin: Origin, bucket: str) -> None:
        for key in ("a", "b/c", "d"):
            await put(origin, ObjectRef(origin.name, bucket, key), b"x")
        results = await origin.delete_many(bucket, [("b/c", None), ("nothing", None), ("a", None)])
        assert [result.key for result in results] == ["b/c", "nothing", "a"]
        assert all(result.error_code is None for result in results)
        assert await listed(origin, bucket) == ["d"]

    # Buckets

    async def test_buckets_come_and_go(self, origin: Origin) -> None:
        await origin.create_bucket("one")
        await origin.create_bucket("one")
        await origin.head_bucket("one")
        assert [entry.name for entry in await origin.list_buckets()] == ["one"]
        ref = ObjectRef(origin.name, "one", "deep/key")
        await put(origin, ref, b"x")
        with pytest.raises(BucketNotEmpty):
            await origin.delete_bucket("one")
        assert await read_all(origin, ref) == b"x"
        await origin.delete(ref, ANY)
        await origin.delete_bucket("one")
        assert await origin.list_buckets() == []

    # Listings

    async def test_keys_are_listed_in_byte_order(self, origin: Origin, bucket: str) -> None:
        keys = [
            "a-b",
            "a",
            "a/b",
            "a0",
            "a/",
            "a/b-c",
            "a/b/c",
            "A",
            "ä",
            "z",
            "\U0001f4be",
            "\uff5e",
        ]
        for key in keys:
            await put(origin, ObjectRef(origin.name, bucket, key), b"x")
        for limit in (1, 2, 5, 1000):
            assert await listed(origin, bucket, limit=limit) == sorted(keys, key=str.encode)
        assert await listed(origin, bucket, prefix="a/b") == ["a/b", "a/b-c", "a/b/c"]
        assert await listed(origin, bucket, prefix="nothing") == []

    async def test_a_delimiter_folds_keys(self, origin: Origin, bucket: str) -> None:
        for key in ("a/1", "a/2", "b", "c/d/1", "c/d/2", "c/e", "c-1", "c0"):
            await put(origin, ObjectRef(origin.name, bucket, key), b"x")
        for limit in (1, 2, 3, 1000):
            names = await listed(origin, bucket, delimiter="/", limit=limit)
            assert names == ["a/", "b", "c-1", "c/", "c0"]
            names = await listed(origin, bucket, prefix="c/", delimiter="/", limit=limit)
            assert names == ["c/d/", "c/e"]
            names = await listed(origin, bucket, prefix="c", delimiter="d/", limit=limit)
            assert names == ["c-1", "c/d/", "c/e", "c0"]

    async def test_a_page_goes_on_after_a_key(self, origin: Origin, bucket: str) -> None:
        for key in ("a/1", "a/2", "b", "c"):
            await put(origin, ObjectRef(origin.name, bucket, key), b"xyz")
        first = await page(origin, bucket, after="a/1", limit=2)
        assert [entry.key for entry in first.objects] == ["a/2", "b"]
        assert [entry.size_bytes for entry in first.objects] == [3, 3]
        assert {entry.etag for entry in first.objects} == {md5(b"xyz")}
        last = await page(origin, bucket, after=first.next_after or "", limit=2)
        assert [entry.key for entry in last.objects] == ["c"]
        assert last.next_after is None
        folded = await page(origin, bucket, delimiter="/", after="a/")
        assert folded.common_prefixes == ()
        assert [entry.key for entry in folded.objects] == ["b", "c"]

    async def test_versions_are_listed(self, origin: Origin, bucket: str) -> None:
        for key in ("a", "b/c", "d"):
            await put(origin, ObjectRef(origin.name, bucket, key), b"xyz")
        found = await origin.list_versions(
            bucket, prefix="", delimiter="", key_marker="a", version_id_marker="", limit=1
        )
        assert [(entry.key, entry.version_id) for entry in found.versions] == [("b/c", "null")]
        assert found.versions[0].is_latest
        assert found.next_key_marker == "b/c"

    # Multipart

    async def test_parts_become_one_object(self, origin: Origin, ref: ObjectRef) -> None:
        headers = {"content-type": "text/x-demo", "x-amz-meta-a": "1"}
        upload = await self.upload(origin, ref, headers)
        data = [b"a" * PART_BYTES, b"b" * 1000]
        parts = [
            await self.part(origin, ref, upload, number, block)
            for number, block in ((7, data[1]), (3, data[0]))
        ][::-1]
        with pytest.raises(NoSuchKey):
            await origin.head(ref)
        found = await origin.list_parts(ref, upload, after_number=0, limit=1000)
        assert [(part.number, part.size_bytes) for part in found.parts] == [
            (3, PART_BYTES),
            (7, 1000),
        ]
        result = await self.complete(origin, ref, upload, parts)
        assert result == multipart_etag([md5(block) for block in data])
        assert await read_all(origin, ref) == b"".join(data)
        info = await origin.head(ref)
        assert info.etag == result
        assert headers.items() <= info.headers.items()
        with pytest.raises(NoSuchUpload):
            await origin.list_parts(ref, upload, after_number=0, limit=1000)

    async def test_part_numbers_of_a_plain_object(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"plain")
        info, part = await origin.part_span(ref, 1)
        assert info.size_bytes == 5
        assert (part.number, part.start, part.stop, part.count) == (1, 0, 5, 1)
        with pytest.raises(InvalidPartNumber):
            await origin.part_span(ref, 2)

    async def test_a_part_replaces_the_one_before(self, origin: Origin, ref: ObjectRef) -> None:
        upload = await self.upload(origin, ref)
        await self.part(origin, ref, upload, 1, b"old")
        part = await self.part(origin, ref, upload, 1, b"newer")
        found = await origin.list_parts(ref, upload, after_number=0, limit=1000)
        assert [(entry.number, entry.etag) for entry in found.parts] == [(1, md5(b"newer"))]
        await self.complete(origin, ref, upload, [part])
        assert await read_all(origin, ref) == b"newer"

    async def test_a_wrong_completion_is_refused(self, origin: Origin, ref: ObjectRef) -> None:
        upload = await self.upload(origin, ref)
        small = await self.part(origin, ref, upload, 1, b"small")
        last = await self.part(origin, ref, upload, 2, b"last")
        with pytest.raises(InvalidPartOrder):
            await self.complete(origin, ref, upload, [last, small])
        with pytest.raises(InvalidPart):
            await self.complete(origin, ref, upload, [CompletedPart(number=1, etag="0" * 32)])
        with pytest.raises(InvalidPart):
            await self.complete(origin, ref, upload, [CompletedPart(number=9, etag=small.etag)])
        with pytest.raises(EntityTooSmall):
            await self.complete(origin, ref, upload, [small, last])
        with pytest.raises(NoSuchKey):
            await origin.head(ref)
        await self.complete(origin, ref, upload, [last])
        assert await read_all(origin, ref) == b"last"

    async def test_parts_are_copied(self, origin: Origin, ref: ObjectRef) -> None:
        target = ObjectRef(origin.name, ref.bucket, "target")
        await put(origin, ref, bytes(range(256)) * 24_576)
        upload = await self.upload(origin, target)
        parts = []
        for number, wanted in ((1, ByteRange(256, 256 + PART_BYTES)), (2, ByteRange(5, 10))):
            result = await origin.copy_part(
                ref,
                target,
                upload,
                number,
                source_range=wanted,
                source_conditions=Conditions(),
            )
            parts.append(CompletedPart(number=number, etag=result.etag))
        await self.complete(origin, target, upload, parts)
        whole = bytes(range(256)) * (PART_BYTES // 256) + bytes(range(5, 10))
        assert await read_all(origin, target) == whole

    async def test_an_aborted_upload_is_gone(self, origin: Origin, ref: ObjectRef) -> None:
        upload = await self.upload(origin, ref)
        part = await self.part(origin, ref, upload, 1, b"x")
        await origin.abort_upload(ref, upload)
        with pytest.raises(NoSuchUpload):
            await self.part(origin, ref, upload, 2, b"x")
        with pytest.raises(NoSuchUpload):
            await self.complete(origin, ref, upload, [part])
        with pytest.raises(NoSuchKey):
            await origin.head(ref)

    async def test_uploads_are_listed(self, origin: Origin, bucket: str) -> None:
        refs = [ObjectRef(origin.name, bucket, key) for key in ("b", "a/2", "a/1")]
        uploads = {ref.key: await self.upload(origin, ref) for ref in refs}

        async def keys(prefix: str = "", delimiter: str = "") -> tuple[list[str], tuple[str, ...]]:
            found = await origin.list_uploads(
                bucket,
                prefix=prefix,
                delimiter=delimiter,
                key_marker="",
                upload_id_marker="",
                limit=1000,
            )
            assert all(uploads[entry.key] == entry.upload_id for entry in found.uploads)
            return [entry.key for entry in found.uploads], found.common_prefixes

        assert await keys() == (["a/1", "a/2", "b"], ())
        assert await keys(prefix="a/") == (["a/1", "a/2"], ())
        assert await keys(delimiter="/") == (["b"], ("a/",))

    # Tags

    async def test_tags_are_kept_with_the_object(self, origin: Origin, ref: ObjectRef) -> None:
        await put(origin, ref, b"x", {"x-amz-tagging": "a=1&b=two%20words"})
        assert await origin.get_tags(ref) == (("a", "1"), ("b", "two words"))
        etag = (await origin.head(ref)).etag
        await origin.put_tags(ref, [("c", "3")])
        assert await origin.get_tags(ref) == (("c", "3"),)
        assert (await origin.head(ref)).etag == etag
        await origin.delete_tags(ref)
        assert await origin.get_tags(ref) == ()
        await origin.put_tags(ref, [("d", "4")])
        await put(origin, ref, b"y")
        assert await origin.get_tags(ref) == ()

    async def test_buckets_have_tags(self, origin: Origin, bucket: str) -> None:
        with pytest.raises(NoSuchTagSet):
            await origin.get_bucket_tags(bucket)
        await origin.put_bucket_tags(bucket, [("a", "1")])
        assert await origin.get_bucket_tags(bucket) == (("a", "1"),)
        await origin.delete_bucket_tags(bucket)
        with pytest.raises(NoSuchTagSet):
            await origin.get_bucket_tags(bucket)

    # How a test says it shortly

    async def upload(
        self, origin: Origin, ref: ObjectRef, headers: Mapping[str, str] | None = None
    ) -> str:
        return await origin.create_upload(
            ref, headers or {}, checksum_algorithm=None, checksum_type=None
        )

    async def part(
        self, origin: Origin, ref: ObjectRef, upload_id: str, number: int, data: bytes
    ) -> CompletedPart:
        result = await origin.put_part(ref, upload_id, number, BytesBody(data), {})
        assert result.etag == md5(data)
        return CompletedPart(number=number, etag=result.etag)

    async def complete(
        self, origin: Origin, ref: ObjectRef, upload_id: str, parts: list[CompletedPart]
    ) -> str:
        result = await origin.complete_upload(
            ref, upload_id, parts, ANY, checksums={}, checksum_type=None, headers={}
        )
        return result.etag
