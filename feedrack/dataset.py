"""A dataset: the objects under a prefix, by position and by key, one at a time or many at once."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, overload

from feedrack.endpoint import Access, given_credentials, parse_address
from feedrack.errors import FeedrackError
from feedrack.keys import Keys, Order, in_order
from feedrack.listing import object_keys
from feedrack.reading import Outcome, Reader


def open_dataset(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    anonymous: bool = False,
    ca_file: str | None = None,
    timeout_seconds: float = 60.0,
    attempts: int = 6,
    connections: int = 8,
) -> "Dataset":
    """Opens `s3://bucket/prefix`, and lists it once.

    Keys, region and endpoint are found as every S3 tool finds them: arguments, `AWS_*` variables,
    profile files. `connections`: how many objects are asked for at once where the endpoint knows no
    batch requests. Raises the errors of `feedrack.errors`."""
    given = given_credentials(access_key, secret_key, session_token)
    access = Access(
        endpoint_url,
        region,
        profile,
        given,
        anonymous,
        ca_file,
        timeout_seconds,
        attempts,
        connections,
    )
    bucket, prefix = parse_address(url)
    reader = Reader(bucket, access)
    return Dataset(bucket, prefix, Keys(object_keys(reader.client, prefix)), access, reader)


class Dataset:
    """The objects under a prefix as they were listed, in the order of their keys.

    Reads give the objects as they are now. Safe to share among threads, to fork, and to pickle:
    each process opens its own connections. A pickle holds the secret only where one was given."""

    def __init__(
        self, bucket: str, prefix: str, keys: Keys, access: Access, reader: Reader | None = None
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.keys = keys
        self._access = access
        self._reader = reader or Reader(bucket, access)

    def __repr__(self) -> str:
        return f"<feedrack dataset s3://{self.bucket}/{self.prefix}, {len(self)} objects>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.bucket, self.prefix, self.keys, self._access)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, which: int | str) -> bytes: ...

    @overload
    def __getitem__(self, which: slice) -> list[bytes]: ...

    def __getitem__(self, which: int | str | slice) -> bytes | list[bytes]:
        """One object, by position or key (any key of the bucket); a slice is one batch."""
        if isinstance(which, slice):
            return self.read_batch(range(*which.indices(len(self))))
        return self._reader.read(self._key(which))

    def __iter__(self) -> Iterator[bytes]:
        return (data for _, data in self.items())

    def __contains__(self, key: object) -> bool:
        """Whether a key was listed."""
        return key in self.keys

    def read_batch(self, which: Sequence[int | str] | Sequence[int] | Sequence[str]) -> list[bytes]:
        """Objects by position or key, in the order asked, in one request where a gateway answers.

        Raises the first error among them, MissingObject for one that is not there."""
        found: list[bytes] = []
        for outcome in self.read_each(which):
            if isinstance(outcome, FeedrackError):
                raise outcome
            found.append(outcome)
        return found

    def read_each(
        self, which: Sequence[int | str] | Sequence[int] | Sequence[str]
    ) -> list[Outcome]:
        """As read_batch, with an object's error in its place instead of raising it."""
        return self._reader.read_each([self._key(one) for one in which])

    def items(
        self, order: Order = "lexical", *, batch_size: int = 256, ahead: int = 2
    ) -> Iterator[tuple[str, bytes]]:
        """Key and bytes of each object in an order: `lexical`, `shuffled:SEED`, or positions.

        Reads `ahead` batches of `batch_size` before they are asked for. An object that was deleted
        since it was listed raises MissingObject."""
        positions = in_order(self.keys, order)
        starts = range(0, len(positions), batch_size)
        batches = (positions[start : start + batch_size] for start in starts)
        for batch, objects in self.read_ahead(batches, ahead):
            for index, data in zip(batch, objects, strict=True):
                yield self.keys[index], data

    def read_ahead(
        self, batches: Iterator[Sequence[int]], ahead: int = 2
    ) -> Iterator[tuple[Sequence[int], list[bytes]]]:
        """Batches of positions with their objects, `ahead` of them read beforehand."""
        if ahead < 1:
            for batch in batches:
                yield batch, self.read_batch(batch)
            return
        coming: deque[tuple[Sequence[int], Future[list[bytes]]]] = deque()
        threads = ThreadPoolExecutor(ahead, "feedrack-ahead")
        try:
            for batch in batches:
                coming.append((batch, threads.submit(self.read_batch, batch)))
                if len(coming) > ahead:
                    first, future = coming.popleft()
                    yield first, future.result()
            while coming:
                first, future = coming.popleft()
                yield first, future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Ends connections and threads; the next read opens new ones."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, which: int | str) -> str:
        return which if isinstance(which, str) else self.keys[which]
