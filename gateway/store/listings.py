"""Buckets, listings, tags and what is handed to an S3 origin as it is."""

from collections.abc import Sequence

from gateway.errors import NotImplemented as NotImplementedS3
from gateway.model.body import Body
from gateway.model.objects import BucketEntry, ListPage, VersionPage
from gateway.store.uploads import Uploads
from gateway.tiers.protocol import RelayAnswer, RelayRequest

_Tags = tuple[tuple[str, str], ...]


class Listings(Uploads):
    """The part of the object service about many objects, or about none."""

    async def list_buckets(self) -> list[BucketEntry]:
        """The default origin's buckets and those configured by name, in order of name."""
        found: dict[str, BucketEntry] = {}
        if self._buckets.default is not None:
            found = {entry.name: entry for entry in await self._buckets.default.list_buckets()}
        for bucket in self._buckets.listed:
            known = found.get(bucket.origin_bucket) if bucket.name not in found else None
            created_ms = known.created_ms if known is not None else 0
            found.setdefault(bucket.name, BucketEntry(bucket.name, created_ms))
        return sorted(found.values(), key=lambda entry: entry.name)

    async def head_bucket(self, bucket: str) -> None:
        where = self.bucket(bucket)
        await where.origin.head_bucket(where.origin_bucket)

    async def create_bucket(self, bucket: str) -> None:
        where = self.bucket(bucket)
        await where.origin.create_bucket(where.origin_bucket)

    async def delete_bucket(self, bucket: str) -> None:
        where = self.bucket(bucket)
        await where.origin.delete_bucket(where.origin_bucket)

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        where = self.bucket(bucket)
        if where.packs is not None:
            freshness = None if where.immutable else where.freshness_seconds
            if not self._versions.trusts:
                freshness = 0.0
            await where.packs.confirm(where.origin_bucket, prefix, freshness)
        return await where.origin.list_objects(
            where.origin_bucket, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )

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
        where = self.bucket(bucket)
        return await where.origin.list_versions(
            where.origin_bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            version_id_marker=version_id_marker,
            limit=limit,
        )

    async def get_tags(self, bucket: str, key: str, version_id: str | None) -> _Tags:
        where = self.bucket(bucket)
        ref = where.ref(key, version_id)
        sure = self._versions.trusts and not self._versions.generation(ref)
        if where.packs is not None and sure:
            freshness = None if where.immutable else where.freshness_seconds
            tags = where.packs.known_tags(ref, freshness)
            if tags is not None:
                return tags
        return await where.origin.get_tags(ref)

    async def put_tags(
        self, bucket: str, key: str, version_id: str | None, tags: Sequence[tuple[str, str]]
    ) -> None:
        """Replaces an object's tags. A write: the head answers a count of them."""
        where = self.bucket(bucket)
        async with self._writing(where, [key]) as writing:
            await writing.settled()
            await where.origin.put_tags(where.ref(key, version_id), tags)

    async def delete_tags(self, bucket: str, key: str, version_id: str | None) -> None:
        where = self.bucket(bucket)
        async with self._writing(where, [key]) as writing:
            await writing.settled()
            await where.origin.delete_tags(where.ref(key, version_id))

    async def get_bucket_tags(self, bucket: str) -> _Tags:
        where = self.bucket(bucket)
        return await where.origin.get_bucket_tags(where.origin_bucket)

    async def put_bucket_tags(self, bucket: str, tags: Sequence[tuple[str, str]]) -> None:
        where = self.bucket(bucket)
        await where.origin.put_bucket_tags(where.origin_bucket, tags)

    async def delete_bucket_tags(self, bucket: str) -> None:
        where = self.bucket(bucket)
        await where.origin.delete_bucket_tags(where.origin_bucket)

    async def relay(self, request: RelayRequest, body: Body | None, *, writes: bool) -> RelayAnswer:
        """Hands a request to the S3 origin of its bucket. NotImplemented on a directory.

        `writes`: the request may change the object, which is then bracketed as any write.
        """
        where = self.bucket(request.bucket)
        if not where.origin.relays:
            raise NotImplementedS3
        sent = RelayRequest(
            method=request.method,
            bucket=where.origin_bucket,
            key=request.key,
            query=request.query,
            headers=request.headers,
        )
        if not writes or not request.key:
            return await where.origin.relay(sent, body)
        async with self._writing(where, [request.key]) as writing:
            await writing.settled()
            return await where.origin.relay(sent, body)
