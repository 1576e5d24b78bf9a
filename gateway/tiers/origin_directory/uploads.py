"""Multipart uploads on disk: a hidden folder each, a file a part. All block.

`.feedrack~state/uploads/<upload id>/` holds `upload` (what CreateMultipartUpload said) and the
parts. Number, ETag and checksums of a part are its file name, so one rename makes it, whole, and
an upload survives restarts with nothing but its folder. Upload ids sort by when they began.
"""

import os
import re
import secrets
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping

import msgspec

from gateway.errors import InvalidRequest, NoSuchUpload
from gateway.model import checksums
from gateway.model.objects import (
    ChecksumType,
    PartEntry,
    PartPage,
    UploadEntry,
    UploadPage,
)
from gateway.tiers.origin_directory.assembly import Assembly, Part, Upload
from gateway.tiers.origin_directory.drafts import Draft
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.listing import common_prefix, fold
from gateway.tiers.origin_directory.objects import Bucket
from gateway.tiers.origin_directory.paths import STATE_NAME
from gateway.tiers.origin_directory.records import Description, modified_ms
from gateway.tiers.origin_directory.scratch import DRAFTS, draft_name, write_whole

# Long enough for another host to be done with beginning or ending it.
_REMNANT_AGE_SECONDS = 24 * 3600

_UPLOADS = (STATE_NAME, "uploads")
_UPLOAD_NAME = "upload"
_ID = re.compile(r"[0-9a-f]{32}")
_PART_NAME = re.compile(r"(\d{5})-([0-9a-f]{32})((?:,[A-Z0-9]+:[A-Za-z0-9_=-]+)*)")


def begin(
    bucket: Bucket,
    key: str,
    description: Description,
    *,
    checksum_algorithm: str | None,
    checksum_type: ChecksumType | None,
    now_ms: int,
) -> str:
    """A new upload's id. InvalidRequest for checksums S3 does not combine."""
    algorithm = checksum_algorithm or "CRC64NVME"
    if algorithm not in checksums.ALGORITHMS:
        raise InvalidRequest(f"Checksum algorithm {algorithm!r} is not supported.")
    kind = checksum_type or checksums.default_type(algorithm)
    if (kind == "FULL_OBJECT") > (algorithm in ("CRC32", "CRC32C", "CRC64NVME")) or (
        kind == "COMPOSITE" and algorithm == "CRC64NVME"
    ):
        raise InvalidRequest(
            f"The {kind} checksum type cannot be used with the {algorithm.lower()} algorithm."
        )
    upload = Upload(
        key=key,
        initiated_ms=now_ms,
        description=description,
        checksum_algorithm=algorithm,
        checksum_type=kind,
        checksum_named=checksum_algorithm is not None,
    )
    upload_id = f"{now_ms:012x}{secrets.token_hex(10)}"
    with bucket.locks.share(bucket.name):
        raw = msgspec.msgpack.encode(upload)
        write_whole(bucket.folder, (*_UPLOADS, upload_id, _UPLOAD_NAME), raw)
        bucket.check()
    return upload_id


def enter(bucket: Bucket, key: str, upload_id: str) -> tuple[Folder, Upload]:
    """An upload's open folder and what was said of it. NoSuchUpload."""
    if _ID.fullmatch(upload_id) is None:
        raise NoSuchUpload(fields={"UploadId": upload_id})
    try:
        folder = bucket.folder.enter(*_UPLOADS, upload_id)
    except ABSENT as error:
        raise NoSuchUpload(fields={"UploadId": upload_id}) from error
    upload = _read(folder)
    if upload is None or upload.key != key:
        folder.close()
        raise NoSuchUpload(fields={"UploadId": upload_id})
    return folder, upload


def keep_part(
    bucket: Bucket,
    key: str,
    upload_id: str,
    number: int,
    draft: Draft,
    sums: Mapping[str, str],
) -> os.stat_result:
    """Makes a draft the part of that number, in place of the one before. NoSuchUpload. Within
    the bucket's gate."""
    name = f"{number:05d}-{draft.etag}" + "".join(
        f",{algorithm}:{urlsafe_b64encode(checksums.decode(algorithm, value)).decode('ascii')}"
        for algorithm, value in sorted(sums.items())
    )
    status = draft.sync()
    with (
        bucket.locks.share(_gate(bucket, upload_id)),
        bucket.locks.hold((bucket.name, upload_id, number)),
        enter(bucket, key, upload_id)[0] as folder,
    ):
        try:
            draft.rename(folder, name)
            folder.sync()
        except ABSENT as error:
            raise NoSuchUpload(fields={"UploadId": upload_id}) from error
        for other, _ in folder.scan():
            if other.startswith(name[:6]) and other != name:
                folder.unlink(other)
    return status


def parts_of(folder: Folder) -> dict[int, Part]:
    """An upload's parts by number; of two of one number (a crash) the later."""
    found: dict[int, Part] = {}
    for name, kind in folder.scan():
        match = _PART_NAME.fullmatch(name)
        status = folder.stat(name) if match is not None and kind == stat.S_IFREG else None
        if match is None or status is None:
            continue
        pairs = [pair.split(":", 1) for pair in match[3].split(",")[1:]]
        entry = PartEntry(
            number=int(match[1]),
            etag=match[2],
            size_bytes=status.st_size,
            last_modified_ms=modified_ms(status),
            checksums={
                algorithm: checksums.encode(urlsafe_b64decode(value)) for algorithm, value in pairs
            },
        )
        before = found.get(entry.number)
        if before is None or before.entry.last_modified_ms <= entry.last_modified_ms:
            found[entry.number] = Part(entry, name)
    return found


def part_page(folder: Folder, upload: Upload, *, after_number: int, limit: int) -> PartPage:
    """As `Origin.list_parts`."""
    found = parts_of(folder)
    numbers = [number for number in sorted(found) if number > after_number]
    page = numbers[:limit]
    return PartPage(
        parts=tuple(found[number].entry for number in page),
        next_number=page[-1] if len(numbers) > len(page) and page else None,
        checksum_algorithm=upload.checksum_algorithm if upload.checksum_named else None,
        checksum_type=upload.checksum_type if upload.checksum_named else None,
        storage_class=upload.description.headers.get("x-amz-storage-class", "STANDARD"),
    )


def join(folder: Folder, assembly: Assembly, draft: Draft) -> None:
    """Writes the parts into the draft, one after the other."""
    for name, size_bytes in zip(assembly.names, assembly.sizes_bytes, strict=True):
        with folder.reading(name) as source:
            draft.copy_unread(source, 0, size_bytes)


def end(bucket: Bucket, upload_id: str) -> None:
    """Removes an upload with its parts: one rename ends it, and what a crash leaves then is
    cleaned as a draft is. Waits for parts that are just getting their place."""
    with (
        bucket.locks.share(bucket.name),
        bucket.locks.close(_gate(bucket, upload_id)),
        bucket.folder.make(*DRAFTS) as drafts,
    ):
        name = draft_name()
        try:
            with bucket.folder.enter(*_UPLOADS) as uploads:
                uploads.rename(upload_id, drafts, name)
                uploads.sync()
        except ABSENT:
            return
        drafts.remove_tree(name)


def clean_uploads(bucket: Bucket, now_seconds: float) -> None:
    """Removes what a crash left of uploads that had ended (or had not quite begun)."""
    remnants = [
        upload_id
        for upload_id, folder in _folders(bucket)
        if _read(folder) is None and now_seconds - folder.status().st_mtime > _REMNANT_AGE_SECONDS
    ]
    for upload_id in remnants:
        end(bucket, upload_id)


def upload_page(
    bucket: Bucket,
    *,
    prefix: str,
    delimiter: str,
    key_marker: str,
    upload_id_marker: str,
    limit: int,
) -> UploadPage:
    """As `Origin.list_uploads`, in order of key and then of beginning."""
    found: dict[str, list[UploadEntry]] = {}
    for entry in _uploads(bucket):
        after = (
            (entry.key, entry.upload_id) > (key_marker, upload_id_marker)
            if entry.key == key_marker and upload_id_marker
            else entry.key.encode("utf-8") > key_marker.encode("utf-8")
        )
        if after and entry.key.startswith(prefix):
            found.setdefault(entry.key, []).append(entry)
    uploads: list[UploadEntry] = []
    prefixes: list[str] = []
    marker = common_prefix(key_marker, prefix, delimiter)
    keys = sorted(found, key=lambda key: key.encode("utf-8"))
    last = ("", "")
    for row in fold(keys, prefix, delimiter, lambda _: None):
        if row.is_prefix and row.name == marker == key_marker:
            continue
        entries: list[UploadEntry | None] = [None]
        if not row.is_prefix:
            entries = [*sorted(found[row.name], key=_begun)]
        for upload in entries:
            if len(uploads) + len(prefixes) == limit:
                return UploadPage(
                    uploads=tuple(uploads),
                    common_prefixes=tuple(prefixes),
                    next_key_marker=last[0],
                    next_upload_id_marker=last[1],
                )
            if upload is None:
                prefixes.append(row.name)
            else:
                uploads.append(upload)
            last = (row.name, upload.upload_id if upload is not None else "")
    return UploadPage(uploads=tuple(uploads), common_prefixes=tuple(prefixes))


def _gate(bucket: Bucket, upload_id: str) -> str:
    """What those who add a part pass, and who ends the upload closes."""
    return f"{bucket.name}/{upload_id}"


def _uploads(bucket: Bucket) -> Iterator[UploadEntry]:
    for upload_id, folder in _folders(bucket):
        upload = _read(folder)
        if upload is not None:
            yield UploadEntry(
                key=upload.key,
                upload_id=upload_id,
                initiated_ms=upload.initiated_ms,
                storage_class=upload.description.headers.get("x-amz-storage-class", "STANDARD"),
            )


def _folders(bucket: Bucket) -> Iterator[tuple[str, Folder]]:
    try:
        uploads = bucket.folder.enter(*_UPLOADS)
    except ABSENT:
        return
    with uploads:
        for upload_id, _ in uploads.scan():
            if _ID.fullmatch(upload_id) is None:
                continue
            try:
                folder = uploads.enter(upload_id)
            except ABSENT:
                continue
            with folder:
                yield upload_id, folder


def _begun(entry: UploadEntry) -> str:
    return entry.upload_id


def _read(folder: Folder) -> Upload | None:
    raw = folder.read(_UPLOAD_NAME)
    try:
        return msgspec.msgpack.decode(raw, type=Upload) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Anyone may write in these folders; what we have not written is no upload.
        return None
