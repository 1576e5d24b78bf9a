"""Objects out of other formats: the members of WebDataset's tars, the records of TFRecord files.

Read in one pass over each file, a member at a time. TFRecord's framing:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash
from awscrt.checksums import crc32c

from packer.plan import Task
from packer.planning import Before
from packer.reading import Outcome
from packer.runs import read_run
from packer.stores.directory import content_type
from packer.stores.protocol import Got, Listed, ObjectUnreadable, Store, StoreError

SUFFIXES = {"webdataset": (".tar",), "tfrecord": (".tfrecord", ".tfrecords")}

_MASK_DELTA = 0xA282EAD8
_RECORD_LIMIT_BYTES = 2**31

Member = tuple[str, bytes | StoreError]


def made_objects(
    store: Store,
    source: str,
    prefix: str,
    before: Before,
    runs: Iterable[Path],
    largest_bytes: int,
) -> Iterator[Outcome]:
    """The objects that the files of a format under `prefix` hold, file by file.

    Files that have not changed since the pack before are skipped, and members that `runs` have."""
    done = {
        (xxhash.xxh3_64_intdigest(key), record.modified_ms)
        for run in runs
        for key, record in read_run(run)
        if record.made
    }
    for listed in store.listing(prefix):
        if not listed.key.endswith(SUFFIXES[source]) or _is_made(listed, before):
            continue
        stem = listed.key.rpartition(".")[0]
        read = tar_members if source == "webdataset" else tfrecords
        try:
            with store.open(listed.key, listed.etag) as file:
                for name, data in read(file, largest_bytes):
                    task = _task(f"{stem}/{name}", data, listed)
                    if (xxhash.xxh3_64_intdigest(task.key.encode()), task.modified_ms) in done:
                        continue
                    yield task, data if isinstance(data, StoreError) else _got(task, data)
        except (tarfile.TarError, EOFError) as error:
            yield _task(listed.key, b"", listed), ObjectUnreadable(f"{listed.key}: {error}")


def tar_members(file: BinaryIO, largest_bytes: int) -> Iterator[Member]:
    """The plain files of a tar, whole; of a name that comes again, tar's rule (the last) cannot be
    kept in one pass, so it is refused."""
    seen: set[int] = set()
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if not member.isreg() or not name:
                continue
            raw = name.encode(errors="surrogateescape")
            if raw != name.encode(errors="replace"):
                # A key is UTF-8.
                yield raw.decode(errors="replace"), ObjectUnreadable("its name is not UTF-8")
                continue
            digest = xxhash.xxh3_64_intdigest(raw)
            if digest in seen:
                yield name, ObjectUnreadable(f"{name} is in the tar twice")
                continue
            seen.add(digest)
            if member.size > largest_bytes:
                yield name, ObjectUnreadable(f"{name} is larger than {largest_bytes} bytes")
                continue
            content = archive.extractfile(member)
            assert content is not None  # noqa: S101 - regular members have content
            yield name, content.read()


def tfrecords(file: BinaryIO, largest_bytes: int) -> Iterator[Member]:
    """The records of a TFRecord file, their checksums verified. EOFError where it is damaged."""
    number = 0
    while head := _exactly(file, 12, at_end=True):
        size = int.from_bytes(head[:8], "little")
        if masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
            raise EOFError(f"the length of record {number} does not match its checksum")
        if size > _RECORD_LIMIT_BYTES:
            raise EOFError(f"record {number} has {size} bytes")
        data = _exactly(file, size)
        if masked_crc(data) != int.from_bytes(_exactly(file, 4), "little"):
            raise EOFError(f"record {number} does not match its checksum")
        name = f"{number:08}.tfrecord-data"
        if size > largest_bytes:
            yield name, ObjectUnreadable(f"record {number} is larger than {largest_bytes} bytes")
        else:
            yield name, data
        number += 1


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _exactly(file: BinaryIO, size: int, *, at_end: bool = False) -> bytes:
    data = file.read(size)
    if len(data) != size and not (at_end and not data):
        raise EOFError("the file ends within a record")
    return data


def _is_made(listed: Listed, before: Before) -> bool:
    """Whether the pack before holds what this version of the file holds."""
    if before.index is None or not before.knows(listed):
        return False
    stem = (listed.key.rpartition(".")[0] + "/").encode()
    for key, member in before.index.walk(stem):
        if not key.startswith(stem):
            return False
        if member.made and member.modified_ms == listed.modified_ms:
            return True
    return False


def _task(key: str, data: bytes | StoreError, listed: Listed) -> Task:
    if isinstance(data, StoreError):
        return Task(key, 0, "", listed.modified_ms, made=True)
    etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Task(key, len(data), etag, listed.modified_ms, made=True)


def _got(task: Task, data: bytes) -> Got:
    return Got(data, task.etag, {"content-type": content_type(task.key)})
