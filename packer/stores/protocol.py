"""What `packer` asks of a store of objects, and the errors that every store speaks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct, field

# Said of each request: answer from the origin's own objects, not through packs.
BYPASS_HEADER = "x-feedrack-packs"
BYPASS = "bypass"
# What GetObject says of an object and a later answer has to say again.
KEPT_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-storage-class",
        "x-amz-website-redirect-location",
    }
)


class StoreError(Exception):
    """The store did not do what it was asked; `status` is S3's, where there is one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ObjectMissing(StoreError):  # noqa: N818 - named for what it says of the object
    """There is no such object (any more)."""


class ConditionFailed(StoreError):  # noqa: N818
    """The object is not the version that was asked for, or exists where it must not."""


class ObjectUnreadable(StoreError):  # noqa: N818
    """This object cannot be read, whoever is well otherwise: archived, encrypted, forbidden."""


class Listed(Struct, frozen=True, gc=False):
    """What a listing says of an object; the ETag unquoted, the time in milliseconds since 1970."""

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    storage_class: str = "STANDARD"
    # What GetObject would say; in the answer of `head` alone.
    headers: dict[str, str] = field(default_factory=dict)


class Got(Struct, frozen=True):
    """An object in one version: its bytes, its headers to keep, S3's own checksums, its tags."""

    data: bytes
    etag: str
    headers: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()


class Deletion(Struct, frozen=True):
    """An object to delete, and the version it must have (None: any)."""

    key: str
    etag: str | None = None


class Store(Protocol):
    """One bucket. Safe for many threads. Raises StoreError and OSError."""

    bucket: str
    # Whether packs are served by whoever answers, and whether it has let us past them.
    is_gateway: bool
    bypassed: bool

    @property
    def requests(self) -> int:
        """Requests made so far."""
        ...

    def close(self) -> None:
        """Lets go of connections; nobody may be asking."""
        ...

    def seconds(self) -> float:
        """The store's clock, as its last answer told it: seconds since 1970."""
        ...

    def listing(self, prefix: str) -> Iterator[Listed]:
        """All objects whose keys begin with `prefix`, in order of the keys' bytes."""
        ...

    def get(self, key: str, etag: str | None = None) -> Got:
        """An object, of that version where one is given. ObjectMissing, ConditionFailed."""
        ...

    def read(self, key: str, offset: int, size_bytes: int) -> bytes:
        """Exactly these bytes of an object."""
        ...

    def open(self, key: str, etag: str | None = None) -> BinaryIO:
        """An object's bytes as a stream, to be closed."""
        ...

    def head(self, key: str) -> Listed:
        """What is known of an object. ObjectMissing."""
        ...

    def tags(self, key: str) -> tuple[tuple[str, str], ...]:
        """An object's tags. ObjectMissing."""
        ...

    def put(
        self,
        key: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        """Writes an object whole; its ETag. ConditionFailed where the condition does not hold."""
        ...

    def put_file(
        self,
        key: str,
        path: Path,
        sent: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        """Uploads a file, in parts where it is large, telling `sent` of bytes as they go.
        ConditionFailed where `if_absent` and there is an object."""
        ...

    def delete(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        """Deletes at most 1,000 objects; those that were not, with why. Absent ones count."""
        ...

    def conditional_deletes(self, key: str) -> bool:
        """Whether deletes under an ETag are honoured, tried on an object of that key."""
        ...

    def clean_uploads(self, prefix: str) -> None:
        """Ends multipart uploads that a crash left under `prefix`, as far as can be."""
        ...
