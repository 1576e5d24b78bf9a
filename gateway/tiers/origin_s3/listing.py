"""Buckets and listings of an S3 origin, always in UTF-8 byte order.

S3 lists in that order; directory buckets and some gateways before a NAS do not. A page that is
out of order gives such a bucket away: from then on every page of it is chosen from the whole
prefix, which is slow but right.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

import heapq
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import structlog

from gateway.errors import BucketAlreadyOwnedByYou, InvalidRequest
from gateway.model.conditions import unquote_etag
from gateway.model.objects import (
    BucketEntry,
    ListPage,
    ObjectEntry,
    VersionEntry,
    VersionPage,
)
from gateway.tiers.origin_s3.client import S3Connection
from gateway.tiers.origin_s3.headers import datetime_ms

SORTED_KEYS_AT_MOST = 1_000_000
_PAGE_KEYS = 1000
# Enough for a service that does not sort to give itself away, however few are wanted.
_TELLING_KEYS = 16
_LAST_CHARACTER = "\U0010ffff"
_VERSION_TAG = re.compile(rb"<(?:\w+:)?(Version|DeleteMarker)[\s>]")

Item = ObjectEntry | str
"""An object or, as a string, a common prefix."""


class Listing(S3Connection):
    """The part of `Origin` about buckets and what is in them."""

    async def start(self) -> None:
        await super().start()
        self._unsorted_buckets: set[str] = set()
        self._client.meta.events.register("before-parse.s3.ListObjectVersions", _note_row_order)

    async def list_buckets(self) -> list[BucketEntry]:
        entries: list[BucketEntry] = []
        asked: dict[str, Any] = {}
        while True:
            answer: Any = await self._send("ListBuckets", self._client.list_buckets(**asked))
            entries += [
                BucketEntry(bucket["Name"], datetime_ms(bucket["CreationDate"]))
                for bucket in answer.get("Buckets", [])
            ]
            token = answer.get("ContinuationToken")
            if not token:
                return entries
            asked["ContinuationToken"] = token

    async def head_bucket(self, bucket: str) -> None:
        call = self._client.head_bucket(Bucket=bucket)
        await self._send("HeadBucket", call, bucket=bucket)

    async def create_bucket(self, bucket: str) -> None:
        asked: dict[str, Any] = {"Bucket": bucket}
        # us-east-1 has no name of its own here: S3 refuses it as a LocationConstraint.
        if self._config.region != "us-east-1":
            asked["CreateBucketConfiguration"] = {"LocationConstraint": self._config.region}
        try:
            await self._send("CreateBucket", self._client.create_bucket(**asked), bucket=bucket)
        except BucketAlreadyOwnedByYou:
            return

    async def delete_bucket(self, bucket: str) -> None:
        call = self._client.delete_bucket(Bucket=bucket)
        await self._send("DeleteBucket", call, bucket=bucket)
        self._seen_buckets.discard(bucket)
        self._unsorted_buckets.discard(bucket)

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        if bucket not in self._unsorted_buckets:
            page = await self._sorted_page(bucket, prefix, delimiter, after, limit)
            if page is not None:
                return page
            self._unsorted_buckets.add(bucket)
            structlog.get_logger().warning(
                "origin_lists_unsorted", origin=self._name, bucket=bucket
            )
        return await self._chosen_page(bucket, prefix, delimiter, after, limit)

    async def list_versions(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        version_id_marker: str,
        limit: int,
    ) -> VersionPage:
        asked = _asked(
            Bucket=bucket,
            Prefix=prefix,
            Delimiter=delimiter,
            KeyMarker=key_marker,
            VersionIdMarker=version_id_marker,
            MaxKeys=limit,
        )
        call = self._client.list_object_versions(**asked)
        answer: Any = await self._send("ListObjectVersions", call, bucket=bucket)
        more = answer.get("IsTruncated", False)
        return VersionPage(
            versions=_version_rows(answer),
            common_prefixes=_prefixes(answer),
            next_key_marker=answer.get("NextKeyMarker", "") if more else None,
            next_version_id_marker=answer.get("NextVersionIdMarker", "") if more else None,
        )

    async def get_bucket_tags(self, bucket: str) -> tuple[tuple[str, str], ...]:
        call = self._client.get_bucket_tagging(Bucket=bucket)
        answer = await self._send("GetBucketTagging", call, bucket=bucket)
        return tuple((tag["Key"], tag["Value"]) for tag in answer["TagSet"])

    async def put_bucket_tags(self, bucket: str, tags: Sequence[tuple[str, str]]) -> None:
        tagging: Any = {"TagSet": [{"Key": key, "Value": value} for key, value in tags]}
        call = self._client.put_bucket_tagging(Bucket=bucket, Tagging=tagging)
        await self._send("PutBucketTagging", call, bucket=bucket)

    async def delete_bucket_tags(self, bucket: str) -> None:
        call = self._client.delete_bucket_tagging(Bucket=bucket)
        await self._send("DeleteBucketTagging", call, bucket=bucket)

    async def _sorted_page(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage | None:
        """A page as the origin gives it, or None where the origin does not sort."""
        last = after
        start_after = _start_after(prefix, delimiter, after)
        asked = max(limit, _TELLING_KEYS)
        pages = self._pages(bucket, prefix, delimiter, start_after, asked)
        async for objects, prefixes, more in pages:
            if not (_ascends(last, [entry.key for entry in objects]) and _ascends("", prefixes)):
                return None
            # What `after` covers may come once more: S3 leaves open how StartAfter treats it.
            items = [item for item in _items(objects, prefixes) if _beyond(item, after, delimiter)]
            if items or not more:
                return _page(items[:limit], more=more or len(items) > limit)
            last = objects[-1].key if objects else last
        return ListPage()

    async def _chosen_page(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        """A page chosen from the whole prefix, in the memory of one page."""
        smallest: list[Item] = []
        seen = 0
        # Without the delimiter: which keys lie beyond `after` decides which prefixes are listed.
        async for objects, _, _ in self._pages(bucket, prefix, "", "", _PAGE_KEYS):
            seen += len(objects)
            if seen > SORTED_KEYS_AT_MOST:
                raise InvalidRequest(
                    f"The origin does not list {bucket} in order, and more than "
                    f"{SORTED_KEYS_AT_MOST} keys under one prefix are too many to sort."
                )
            fresh = (
                _folded(entry, prefix, delimiter)
                for entry in objects
                if _beyond(entry, after, delimiter)
            )
            unique = {_name(item): item for item in (*smallest, *fresh)}
            smallest = heapq.nsmallest(limit + 1, unique.values(), key=_order)
        return _page(smallest[:limit], more=len(smallest) > limit)

    async def _pages(
        self, bucket: str, prefix: str, delimiter: str, start_after: str, limit: int
    ) -> AsyncIterator[tuple[list[ObjectEntry], list[str], bool]]:
        """The origin's own pages: objects, common prefixes, and whether there are more."""
        asked = _asked(
            Bucket=bucket,
            Prefix=prefix,
            Delimiter=delimiter,
            StartAfter=start_after,
            MaxKeys=limit,
        )
        while True:
            call = self._client.list_objects_v2(**asked)
            answer: Any = await self._send("ListObjectsV2", call, bucket=bucket)
            objects = [_object(entry) for entry in answer.get("Contents", [])]
            token = answer.get("NextContinuationToken")
            more = bool(answer.get("IsTruncated") and token)
            yield objects, list(_prefixes(answer)), more
            if not more:
                return
            asked.pop("StartAfter", None)
            asked["ContinuationToken"] = token


def _start_after(prefix: str, delimiter: str, after: str) -> str:
    """`after`, or past all keys below it where it is a common prefix."""
    below = after[len(prefix) :] if after.startswith(prefix) else ""
    if delimiter and below and below.find(delimiter) == len(below) - len(delimiter):
        return after + _LAST_CHARACTER
    return after


def _beyond(item: Item, after: str, delimiter: str) -> bool:
    """Whether an item comes after `after`, and not below it.

    A common prefix that `after` lies within is listed for the keys that come after `after`.
    """
    if isinstance(item, str):
        return item != after and (item.encode() > after.encode() or after.startswith(item))
    covered = bool(delimiter) and after.endswith(delimiter) and item.key.startswith(after)
    return item.key.encode() > after.encode() and not covered


def _folded(entry: ObjectEntry, prefix: str, delimiter: str) -> Item:
    """The common prefix that stands for an object, or the object."""
    end = entry.key.find(delimiter, len(prefix)) if delimiter else -1
    return entry if end < 0 else entry.key[: end + len(delimiter)]


def _ascends(last: str, keys: Sequence[str]) -> bool:
    previous = last.encode()
    for key in keys:
        current = key.encode()
        if current < previous:
            return False
        previous = current
    return True


def _items(objects: Sequence[ObjectEntry], prefixes: Sequence[str]) -> Iterator[Item]:
    return heapq.merge(objects, prefixes, key=_order)


def _name(item: Item) -> str:
    return item if isinstance(item, str) else item.key


def _order(item: Item) -> bytes:
    return _name(item).encode()


def _page(items: Sequence[Item], *, more: bool) -> ListPage:
    return ListPage(
        objects=tuple(item for item in items if not isinstance(item, str)),
        common_prefixes=tuple(item for item in items if isinstance(item, str)),
        next_after=_name(items[-1]) if more and items else None,
    )


def _object(entry: Any) -> ObjectEntry:
    return ObjectEntry(
        key=entry["Key"],
        etag=unquote_etag(entry.get("ETag", "")),
        size_bytes=entry.get("Size", 0),
        last_modified_ms=datetime_ms(entry["LastModified"]),
        storage_class=entry.get("StorageClass", "STANDARD"),
        checksum_algorithms=tuple(entry.get("ChecksumAlgorithm", ())),
        checksum_type=entry.get("ChecksumType"),
    )


def _prefixes(answer: Any) -> tuple[str, ...]:
    return tuple(common["Prefix"] for common in answer.get("CommonPrefixes", []))


def _asked(**parameters: Any) -> dict[str, Any]:
    """The parameters that say something: S3 takes no empty markers."""
    return {name: value for name, value in parameters.items() if value != ""}


def _note_row_order(response_dict: Any, customized_response_dict: Any, **_: Any) -> None:
    """Keeps what botocore's parser drops: how versions and delete markers interleave."""
    customized_response_dict["RowOrder"] = _VERSION_TAG.findall(response_dict["body"])


def _version_rows(answer: Any) -> tuple[VersionEntry, ...]:
    versions = iter([_version(row) for row in answer.get("Versions", [])])
    markers = iter([_version(row, marker=True) for row in answer.get("DeleteMarkers", [])])
    rows = [next(versions if tag == b"Version" else markers) for tag in answer["RowOrder"]]
    # Newest first within a key; the origin's own order decides between equal times.
    rows.sort(key=lambda row: (row.key.encode(), not row.is_latest, -row.last_modified_ms))
    return tuple(rows)


def _version(row: Any, *, marker: bool = False) -> VersionEntry:
    return VersionEntry(
        key=row["Key"],
        version_id=row.get("VersionId", "null"),
        is_latest=row.get("IsLatest", False),
        last_modified_ms=datetime_ms(row["LastModified"]),
        delete_marker=marker,
        etag=unquote_etag(row.get("ETag", "")),
        size_bytes=row.get("Size", 0),
        storage_class=row.get("StorageClass", "STANDARD"),
    )
