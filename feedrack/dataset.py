"""A dataset: the objects under a prefix, by position and by key, one at a time or many at once."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, cast, overload

from feedrack.catalog import Catalog
from feedrack.endpoint import Access, given_credentials, parse_address
from feedrack.errors import FeedrackError
from feedrack.keys import Keys, Order, in_order
from feedrack.listing import object_keys
from feedrack.near import Near
from feedrack.reading import Outcome, Reader

if TYPE_CHECKING:
    from feedrack.rdma.moving import Counts


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
    short_circuit: bool = True,
    rdma: bool = True,
) -> "Dataset":
    """Opens `s3://bucket/prefix`, and lists it once.

    Keys, region and endpoint are found as every S3 tool finds them: arguments, `AWS_*` variables,
    profile files. `connections`: how many objects are asked for at once where the endpoint knows no
    batch requests. `short_circuit`: map shards of packs that a gateway on this machine hands over.
    `rdma`: take batches by RDMA where this host and the gateway can.
    Raises the errors of `feedrack.errors`."""
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
        short_circuit,
        rdma,
    )
    bucket, prefix = parse_address(url)
    reader = Reader(bucket, access)
    dataset = Dataset(bucket, prefix, Keys(object_keys(reader.client, prefix)), access, reader)
    if dataset.near is not None:
        # Here, so that workers that are forked share what is mapped and known.
        dataset.near.ask()
    return dataset


class Dataset:
    """The objects under a prefix as they were listed, in the order of their keys.

    Reads give the objects as they are now. Safe to share among threads, to fork, and to pickle:
    each process opens its own connections. A pickle holds the secret only where one was given."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        keys: Keys,
        access: Access,
        reader: Reader | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.keys = keys
        self._access = access
        self._reader = reader or Reader(bucket, access)
        self.near: Near | None = None
        if access.short_circuit:
            self.near = Near(self._reader.client, keys, prefix, catalog)

    def __repr__(self) -> str:
        return f"<feedrack dataset s3://{self.bucket}/{self.prefix}, {len(self)} objects>"

    def __reduce__(self) -> tuple[Any, ...]:
        catalog = self.near.catalog if self.near is not None else None
        return Dataset, (self.bucket, self.prefix, self.keys, self._access, None, catalog)

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
        here = self._here([which])
        if here is not None and here[0] is not None:
            return here[0]
        return self._reader.read(self._key(which))

    @property
    def rdma_counts(self) -> "Counts | None":
        """How batches came in this process until now: `transfers` by RDMA, their `bytes`, and
        `fallbacks`, requests over HTTP by reason. None where RDMA is switched off."""
        return self._reader.rdma_counts

    def __iter__(self) -> Iterator[bytes]:
        return (data for _, data in self.items())

    def __contains__(self, key: object) -> bool:
        """Whether a key was listed."""
        return key in self.keys

    def read_batch(self, which: Sequence[int | str] | Sequence[int] | Sequence[str]) -> list[bytes]:
        """Objects by position or key, in the order asked, in one request where a gateway answers.

        Raises the first error among them, MissingObject for one that is not there."""
        here = self._here(which)
        if here is not None and None not in here:
            return cast("list[bytes]", here)
        found: list[bytes] = []
        for outcome in self._filled(which, here):
            if isinstance(outcome, FeedrackError):
                raise outcome
            found.append(outcome)
        return found

    def view_batch(
        self, which: Sequence[int | str] | Sequence[int] | Sequence[str]
    ) -> list[memoryview]:
        """As read_batch, without a copy of what is mapped here: read-only views, good for as long
        as they are held."""
        positions = [self._position(one) for one in which]
        here = self.near.view(positions) if self.near is not None else None
        if here is not None and None not in here:
            return cast("list[memoryview]", here)
        return [memoryview(data) for data in self.read_batch(which)]

    def read_each(
        self, which: Sequence[int | str] | Sequence[int] | Sequence[str]
    ) -> list[Outcome]:
        """As read_batch, with an object's error in its place instead of raising it."""
        return self._filled(which, self._here(which))

    def _filled(
        self,
        which: Sequence[int | str] | Sequence[int] | Sequence[str],
        here: list[bytes | None] | None,
    ) -> list[Outcome]:
        """What is here, with what is not asked for."""
        if here is None:
            return self._reader.read_each([self._key(one) for one in which])
        away = [number for number, data in enumerate(here) if data is None]
        asked = self._reader.read_each([self._key(which[number]) for number in away])
        found: list[Outcome | None] = [*here]
        for number, outcome in zip(away, asked, strict=True):
            found[number] = outcome
        return [outcome for outcome in found if outcome is not None]

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

    def _here(
        self, which: Sequence[int | str] | Sequence[int] | Sequence[str]
    ) -> list[bytes | None] | None:
        """What is mapped of it, None in the place of the rest; None where nothing is."""
        if self.near is None:
            return None
        try:
            return self.near.read(cast("Sequence[int]", which))
        except TypeError:
            return self.near.read([self._position(one) for one in which])

    def _position(self, which: int | str) -> int | None:
        return self.keys.find(which) if isinstance(which, str) else which

    def _key(self, which: int | str) -> str:
        return which if isinstance(which, str) else self.keys[which]
