"""An fsspec filesystem over the reader: `fsspec.open("feedrack://bucket/key")`. Read-only.

Beside an ordinary S3 filesystem it has one thing more: `cat` of many paths, and `cat_ranges`, are
one batch request where a gateway answers.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from feedrack.endpoint import Access, given_credentials
from feedrack.errors import (
    AccessRefused,
    FeedrackError,
    MissingBucket,
    MissingObject,
    ObjectChanged,
    RangeOutside,
)
from feedrack.listing import Listed, ask_page, walk
from feedrack.reading import Outcome, Reader

Info = dict[str, Any]


class FeedrackFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Buckets as folders, keys as paths. Options as those of `feedrack.open_dataset`:
    `rdma=False` keeps batches off RDMA."""

    protocol = "feedrack"
    root_marker = ""

    def __init__(
        self,
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
        rdma: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        given = given_credentials(access_key, secret_key, session_token)
        self._access = Access(
            endpoint_url,
            region,
            profile,
            given,
            anonymous,
            ca_file,
            timeout_seconds,
            attempts,
            connections,
            rdma=rdma,
        )
        self._readers: dict[str, Reader] = {}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What lies directly under a path, or the object itself. FileNotFoundError for nothing."""
        bucket, key = self._place(path)
        prefix = f"{key.rstrip('/')}/" if key else ""
        found: list[Info] = []
        with _translated(path):
            for page in walk(self._reader(bucket).client, prefix, "/"):
                found += [
                    _folder(f"{bucket}/{common.rstrip('/')}")
                    for common in page.prefixes
                    if common != prefix
                ]
                found += [_file(bucket, item) for item in page.objects if item.key != prefix]
        if not found and key:
            found = [self.info(path)]
            if found[0]["type"] == "directory":
                found = []
        found.sort(key=_name)
        return found if detail else [_name(one) for one in found]

    def info(self, path: str, **_: Any) -> Info:
        """Size, ETag and time of an object; a prefix with objects under it is a directory."""
        bucket, key = self._place(path)
        reader = self._reader(bucket)
        with _translated(path):
            if not key:
                ask_page(reader.client, (("list-type", "2"), ("max-keys", "1")))
                return _folder(bucket)
            query = (("encoding-type", "url"), ("list-type", "2"), ("prefix", key))
            page = ask_page(reader.client, (*query, ("max-keys", "1")))
            if page.objects and page.objects[0].key == key:
                return _file(bucket, page.objects[0])
            below = f"{key.rstrip('/')}/"
            page = ask_page(reader.client, (*query[:2], ("prefix", below), ("max-keys", "1")))
        if page.objects:
            return _folder(f"{bucket}/{key.rstrip('/')}")
        raise FileNotFoundError(path)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **options: Any,
    ) -> Any:
        """All objects under a path, by one flat listing."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail=detail, **options)
        bucket, key = self._place(path)
        found: dict[str, Info] = {}
        prefix = f"{key.rstrip('/')}/" if key else ""
        with _translated(path):
            for page in walk(self._reader(bucket).client, prefix):
                for item in page.objects:
                    if not item.key.endswith("/"):
                        found[f"{bucket}/{item.key}"] = _file(bucket, item)
        if not found and self.isfile(path):
            found = {self._strip_protocol(path): self.info(path)}
        return found if detail else list(found)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """An object, or the bytes from `start` to before `end` (negative: from its end)."""
        bucket, key = self._place(path)
        with _translated(path):
            if not start and end is None:
                return self._reader(bucket).read(key)
            size_bytes = self.size(path) if (start or 0) < 0 or (end or 0) < 0 else None
            wanted = _range(start, end, size_bytes)
            try:
                return b"" if wanted is None else self._reader(bucket).read(key, wanted)
            except RangeOutside:
                return b""

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any
    ) -> Any:
        """An object, or a dict of many, read as one batch."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and isinstance(path, str) and not recursive and "*" not in path:
            return self.cat_file(paths[0], **options)
        outcomes = self._cat_each(paths, [None] * len(paths))
        return _kept(dict(zip(paths, outcomes, strict=True)), on_error)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """A range of each path, as one batch."""
        if max_gap is not None:
            raise NotImplementedError
        count = len(paths)
        begins = list(starts) if isinstance(starts, Sequence) else [starts] * count
        stops = list(ends) if isinstance(ends, Sequence) else [ends] * count
        if not len(begins) == len(stops) == count:
            raise ValueError("as many starts and ends as paths")
        ranges = []
        for path, start, end in zip(paths, begins, stops, strict=True):
            size_bytes = self.size(path) if (start or 0) < 0 or (end or 0) < 0 else None
            whole = not start and end is None
            ranges.append(None if whole else _range(start, end, size_bytes) or "")
        outcomes = self._cat_each([self._strip_protocol(path) for path in paths], ranges)
        if on_error == "raise":
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
        return list(outcomes)

    def _cat_each(
        self, paths: Sequence[str], ranges: Sequence[str | None]
    ) -> list[bytes | Exception]:
        """Each path's bytes or its error; an empty range is no bytes."""
        found: list[bytes | Exception] = [b""] * len(paths)
        by_bucket: dict[str, list[int]] = {}
        places = [self._place(path) for path in paths]
        for number, (bucket, _) in enumerate(places):
            if ranges[number] != "":
                by_bucket.setdefault(bucket, []).append(number)
        for bucket, numbers in by_bucket.items():
            outcomes = self._reader(bucket).read_each(
                [places[number][1] for number in numbers], [ranges[number] for number in numbers]
            )
            for number, outcome in zip(numbers, outcomes, strict=True):
                found[number] = _expected(outcome, paths[number])
        return found

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "FeedrackFile":
        if mode != "rb":
            raise NotImplementedError("feedrack:// is read-only: write through any S3 client")
        return FeedrackFile(
            self, path, mode, block_size or "default", cache_options=cache_options, **options
        )

    def modified(self, path: str) -> Any:
        """Last-Modified of an object."""
        return self.info(path)["LastModified"]

    def ukey(self, path: str) -> str:
        """What changes when the object does: its ETag."""
        return str(self.info(path).get("ETag", ""))

    def _reader(self, bucket: str) -> Reader:
        reader = self._readers.get(bucket)
        if reader is None:
            reader = self._readers[bucket] = Reader(bucket, self._access)
        return reader

    def _place(self, path: str) -> tuple[str, str]:
        bucket, _, key = cast("str", self._strip_protocol(path)).partition("/")
        if not bucket:
            raise FileNotFoundError("a path begins with a bucket: feedrack://bucket/key")
        return bucket, key


class FeedrackFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object opened to be read, by ranges, all of one version: an OSError once it is another."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        wanted = _range(start, end, None)
        if wanted is None:
            return b""
        bucket, key = self.fs._place(self.path)
        with _translated(self.path):
            data: bytes = self.fs._reader(bucket).read(key, wanted, etag=self.details["ETag"])
        return data


class _translated:  # noqa: N801 - used as a statement
    """Turns our errors into those that callers of fsspec expect."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FeedrackError):
            raise _translation(error, self._path) from error


def _translation(error: FeedrackError, path: str) -> Exception:
    if isinstance(error, MissingObject | MissingBucket):
        return FileNotFoundError(path)
    if isinstance(error, AccessRefused):
        return PermissionError(str(error))
    if isinstance(error, ObjectChanged):
        return OSError(errno.ESTALE, str(error), path)
    return error


def _expected(outcome: Outcome, path: str) -> bytes | Exception:
    if isinstance(outcome, RangeOutside):
        return b""
    return _translation(outcome, path) if isinstance(outcome, FeedrackError) else outcome


def _range(start: int | None, end: int | None, size_bytes: int | None) -> str | None:
    """A Range header's value; None where no byte is asked for. `size_bytes` for negative ends."""
    first, last = start or 0, end
    if size_bytes is not None:
        first = max(0, first + size_bytes) if first < 0 else first
        last = last + size_bytes if last is not None and last < 0 else last
        if first >= size_bytes:
            return None
    if last is not None and last <= first:
        return None
    return f"bytes={first}-" if last is None else f"bytes={first}-{last - 1}"


def _kept(outcomes: dict[str, bytes | Exception], on_error: str) -> dict[str, bytes | Exception]:
    if on_error == "raise":
        for outcome in outcomes.values():
            if isinstance(outcome, Exception):
                raise outcome
    if on_error == "omit":
        return {path: out for path, out in outcomes.items() if not isinstance(out, Exception)}
    return outcomes


def _file(bucket: str, item: Listed) -> Info:
    return {
        "name": f"{bucket}/{item.key}",
        "size": item.size_bytes,
        "type": "file",
        "ETag": item.etag,
        "LastModified": item.modified,
    }


def _folder(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}


def _name(info: Info) -> str:
    return str(info["name"])
