"""Where unpacked objects go: a directory, a bucket, or WebDataset's tars."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from packer.stores.protocol import ConditionFailed, Got, Store

_ODD = ".feedrack~unpacked"
_NAME_BYTES = 255


class Facts(Struct, frozen=True, omit_defaults=True):
    """What is known of an object beyond its bytes; a line of `metadata.jsonl`."""

    key: str
    etag: str
    modified_ms: int
    headers: dict[str, str]
    path: str = ""
    checksums: dict[str, str] = msgspec.field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()


class Target(Protocol):
    """Takes objects, from many threads unless it is `ordered`. Raises StoreError, OSError."""

    ordered: bool

    def write(self, facts: Facts, got: Got) -> bool:
        """Writes an object; False where one is there that must not be replaced."""
        ...

    def write_file(self, facts: Facts, path: Path) -> bool:
        """Writes an object too large for memory, which is at `path` and may be taken away."""
        ...

    def close(self) -> None:
        """Completes what was written."""
        ...

    def abandon(self) -> None:
        """Lets go of what is not whole and will not be."""
        ...


class DirectoryTarget:
    """Files with their times; what files cannot say goes into `.feedrack~unpacked/metadata.jsonl`.

    A key that is no path, or is also a folder, becomes a file under `.feedrack~unpacked/keys/`."""

    ordered = False

    def __init__(self, root: Path, prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        (root / _ODD).mkdir(parents=True, exist_ok=True)
        self._metadata = (root / _ODD / "metadata.jsonl").open("ab")

    def write(self, facts: Facts, got: Got) -> bool:
        def fill(path: Path) -> None:
            path.write_bytes(got.data)

        return self._write(facts, fill)

    def write_file(self, facts: Facts, path: Path) -> bool:
        return self._write(facts, lambda target: _copy(path, target))

    def close(self) -> None:
        self._metadata.close()

    def abandon(self) -> None:
        self._metadata.close()

    def _write(self, facts: Facts, fill: "Filler") -> bool:
        name = path_of(facts.key.removeprefix(self._prefix).lstrip("/"))
        try:
            path = self._put(facts, name, fill)
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            path = self._put(facts, odd_path(facts.key), fill)
        line = msgspec.structs.replace(facts, path=str(path.relative_to(self._root)))
        self._metadata.write(msgspec.json.encode(line) + b"\n")
        return True

    def _put(self, facts: Facts, name: str, fill: "Filler") -> Path:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.parent / f".feedrack~{os.getpid()}-{id(facts):x}"
        try:
            fill(scratch)
            time_ns = facts.modified_ms * 1_000_000
            os.utime(scratch, ns=(time_ns, time_ns))
            return scratch.rename(path)
        finally:
            scratch.unlink(missing_ok=True)


class Filler(Protocol):
    """Puts an object's bytes into a new file."""

    def __call__(self, path: Path, /) -> None: ...


class BucketTarget:
    """Objects with their headers and tags. A bucket gives each a Last-Modified of its own;
    `keep_times` says the old one in `x-amz-meta-mtime`, as rclone does."""

    ordered = False

    def __init__(
        self, store: Store, prefix: str, to_prefix: str, *, replace: bool, keep_times: bool
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._to_prefix = to_prefix
        self._replace = replace
        self._keep_times = keep_times

    def write(self, facts: Facts, got: Got) -> bool:
        try:
            self._store.put(
                self._key(facts),
                got.data,
                headers=self._headers(facts),
                if_absent=not self._replace,
            )
        except ConditionFailed:
            return False
        return True

    def write_file(self, facts: Facts, path: Path) -> bool:
        try:
            self._store.put_file(
                self._key(facts),
                path,
                lambda _: None,
                self._headers(facts),
                if_absent=not self._replace,
            )
        except ConditionFailed:
            return False
        return True

    def close(self) -> None:
        """Nothing is held back."""

    def abandon(self) -> None:
        """Each object is whole by itself."""

    def _key(self, facts: Facts) -> str:
        return self._to_prefix + facts.key.removeprefix(self._prefix)

    def _headers(self, facts: Facts) -> Mapping[str, str]:
        headers = dict(facts.headers)
        # Where it lay is not where it goes to.
        headers.pop("x-amz-storage-class", None)
        if facts.tags:
            headers["x-amz-tagging"] = urlencode(facts.tags)
        if self._keep_times:
            headers.setdefault("x-amz-meta-mtime", f"{facts.modified_ms / 1000:.3f}")
        return headers


class TarTarget:
    """WebDataset's tars, 000000.tar and on, each of about `tar_bytes`; keys in order, so that the
    files of a sample (one name up to its first dot) stand together and in one tar."""

    ordered = True

    def __init__(self, folder: Path, prefix: str, tar_bytes: int) -> None:
        self._folder = folder
        self._prefix = prefix
        self._tar_bytes = tar_bytes
        self._number = 0
        self._held_bytes = 0
        self._sample = ""
        self._tar: tarfile.TarFile | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, facts: Facts, got: Got) -> bool:
        with io.BytesIO(got.data) as file:
            return self._add(facts, file, len(got.data))

    def write_file(self, facts: Facts, path: Path) -> bool:
        with path.open("rb") as file:
            return self._add(facts, file, path.stat().st_size)

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self._coming.rename(self._coming.with_suffix(""))
            self._tar = None
            self._number += 1
            self._held_bytes = 0

    def abandon(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self._tar = None
            self._coming.unlink()

    @property
    def _coming(self) -> Path:
        return self._folder / f"{self._number:06}.tar.coming"

    def _add(self, facts: Facts, file: "io.BytesIO | io.BufferedReader", size: int) -> bool:
        name = facts.key.removeprefix(self._prefix).lstrip("/")
        sample = sample_of(name)
        if self._held_bytes + size > self._tar_bytes and sample != self._sample:
            self.close()
        if self._tar is None:
            self._tar = tarfile.open(self._coming, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        member = tarfile.TarInfo(name)
        member.size = size
        member.mtime = facts.modified_ms / 1000
        self._tar.addfile(member, file)
        self._held_bytes += size
        self._sample = sample
        return True


def sample_of(name: str) -> str:
    """The sample that a file belongs to: its folder, and its name up to the first dot."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def path_of(key: str) -> str:
    """The relative path of a key; one under `.feedrack~unpacked/keys/` where it is no path."""
    parts = key.split("/")
    if all(
        part not in ("", ".", "..")
        and not part.startswith(".feedrack~")
        and "\0" not in part
        and len(part.encode()) <= _NAME_BYTES
        for part in parts
    ):
        return key
    return odd_path(key)


def odd_path(key: str) -> str:
    """Where a file for any key whatever can be: encoded, in pieces that are file names."""
    name = quote(key, safe="").replace(".", "%2E")
    pieces = [name[at : at + 200] for at in range(0, len(name), 200)] or ["%"]
    # A name that ends where a longer one goes on must not be a folder and a file.
    return "/".join((_ODD, "keys", *(f"{piece}+" for piece in pieces[:-1]), pieces[-1]))


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as file, target.open("wb") as copy:
        while block := file.read(1024**2):
            copy.write(block)
