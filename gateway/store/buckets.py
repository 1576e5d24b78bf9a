"""Which origin serves which bucket. Pure: a table made from the configuration."""

from collections.abc import Mapping

from msgspec import Struct

from gateway.config import BucketConfig, Config, default_origin
from gateway.errors import NoSuchBucket
from gateway.model.objects import ObjectRef
from gateway.tiers.protocol import Origin, Packs


class Bucket(Struct, frozen=True):
    """A bucket as clients see it, and where it lives."""

    name: str
    origin: Origin
    origin_bucket: str
    freshness_seconds: float
    immutable: bool
    public_read: bool
    # Whether some bucket over the same one of the origin is: what the disk remembers of a key is
    # then believed unasked, whichever name it is written by.
    immutable_to_some: bool
    packs: Packs | None = None
    # Where the bucket is seen past packs, the name that its origin has without that: the same keys
    # are known by it, so a write here is a write of theirs too.
    also_written_as: str | None = None

    @property
    def past_packs(self) -> bool:
        """Whether this is the origin's own view, of which nothing is kept."""
        return self.also_written_as is not None

    def ref(self, key: str, version_id: str | None = None) -> ObjectRef:
        """The object's place at the origin."""
        return ObjectRef(self.origin.name, self.origin_bucket, key, version_id)

    def written_ref(self, key: str) -> ObjectRef:
        """By which name a write of the key must be made known: the one it may be remembered by."""
        return ObjectRef(self.also_written_as or self.origin.name, self.origin_bucket, key)


class BucketTable:
    """Client bucket names to `Bucket`s: those listed, then any of the default origin. `packs`: by
    origin, what sees through its packs; `past_packs`: the origins are what is seen past them, and
    always asked anew."""

    def __init__(
        self,
        config: Config,
        origins: Mapping[str, Origin],
        packs: Mapping[str, Packs] | None = None,
        *,
        past_packs: bool = False,
    ) -> None:
        self._packs = packs or {}
        self._plain_names = (
            {origin.name: name for name, origin in origins.items()} if past_packs else {}
        )
        self._origins = origins
        name = default_origin(config)
        self.default = origins[name] if name is not None else None
        self._unlisted = BucketConfig()
        self._immutable: set[tuple[str, str]] = set()
        listed: list[tuple[str, Origin, BucketConfig]] = []
        for bucket_name, bucket in config.buckets.items():
            origin = origins[bucket.origin] if bucket.origin is not None else self.default
            assert origin is not None  # noqa: S101 - config.load has refused this
            listed.append((bucket_name, origin, bucket))
            if bucket.immutable:
                self._immutable.add((origin.name, bucket.origin_bucket or bucket_name))
        self._listed = {entry[0]: self._bucket(*entry) for entry in listed}

    @property
    def immutable(self) -> frozenset[tuple[str, str]]:
        """Origins and buckets of theirs of which some bucket is immutable."""
        return frozenset(self._immutable)

    @property
    def listed(self) -> tuple[Bucket, ...]:
        """The buckets named in the configuration."""
        return tuple(self._listed.values())

    def resolve(self, name: str) -> Bucket:
        """The bucket of that name. NoSuchBucket where no origin could serve it."""
        listed = self._listed.get(name)
        if listed is not None:
            return listed
        if self.default is None:
            raise NoSuchBucket(fields={"BucketName": name})
        return self._bucket(name, self.default, self._unlisted)

    def seen(self, origin: str, origin_bucket: str) -> tuple[Bucket, ...]:
        """The buckets by which clients see that one of an origin."""
        found = [
            bucket
            for bucket in self._listed.values()
            if (bucket.origin.name, bucket.origin_bucket) == (origin, origin_bucket)
        ]
        default = self.default
        if default is not None and default.name == origin and origin_bucket not in self._listed:
            found.append(self._bucket(origin_bucket, default, self._unlisted))
        return tuple(found)

    def behind(self, origin: str, origin_bucket: str) -> Bucket:
        """A bucket over that one of an origin, as peers name it. NoSuchBucket."""
        for bucket in self._listed.values():
            if (bucket.origin.name, bucket.origin_bucket) == (origin, origin_bucket):
                return bucket
        found = self._origins.get(origin)
        if found is None:
            raise NoSuchBucket(fields={"BucketName": origin_bucket})
        return self._bucket(origin_bucket, found, self._unlisted)

    def _bucket(self, name: str, origin: Origin, config: BucketConfig) -> Bucket:
        origin_bucket = config.origin_bucket or name
        plain_name = self._plain_names.get(origin.name)
        return Bucket(
            name=name,
            origin=origin,
            origin_bucket=origin_bucket,
            freshness_seconds=config.freshness_seconds if plain_name is None else 0,
            immutable=config.immutable and plain_name is None,
            public_read=config.public_read,
            immutable_to_some=(origin.name, origin_bucket) in self._immutable,
            packs=self._packs.get(origin.name),
            also_written_as=plain_name,
        )
