"""Objects back to back in one stream: how each is introduced, and how the end is told. Pure.

Two framings of one interface: frames, which cost a reader least, and tar, which everything reads.
docs/batch.md has both, byte by byte.
"""

import struct
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.errors import S3Error
from gateway.model.objects import ObjectInfo
from gateway.model.ranges import ByteRange

FRAME = struct.Struct(">IHHQ")
END_POSITION = 0xFFFFFFFF
_METADATA_BYTES = 65_535
_TEXT_CHARACTERS = 1000


class Framing(Protocol):
    """What stands before, between and after the objects of an answer."""

    @property
    def content_type(self) -> str: ...

    def opening(
        self, position: int, key: str, info: ObjectInfo, wanted: ByteRange, *, partial: bool
    ) -> bytes:
        """What comes before the bytes `wanted` of an object. `partial`: a range was asked for."""
        ...

    def closing(self, size_bytes: int) -> bytes:
        """What comes after an object's `size_bytes` bytes."""
        ...

    def failure(self, position: int, key: str, error: S3Error) -> bytes:
        """What takes the place of an object that cannot be had."""
        ...

    def end(self, *, objects: int, failed: int) -> bytes:
        """What makes the answer complete."""
        ...


class _Metadata(Struct, omit_defaults=True, gc=False):
    etag: str
    modified_ms: int
    content_type: str | UnsetType = UNSET
    range: str | UnsetType = UNSET


class _Failure(Struct, gc=False):
    code: str
    message: str


class _End(Struct, gc=False):
    objects: int
    failed: int


class Frames:
    """Every object behind a fixed head and its metadata as JSON."""

    content_type = "application/x-feedrack-frames"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def opening(
        self,
        position: int,
        key: str,  # noqa: ARG002 - the position says which
        info: ObjectInfo,
        wanted: ByteRange,
        *,
        partial: bool,
    ) -> bytes:
        """As `Framing.opening`."""
        told = _Metadata(info.etag, info.last_modified_ms)
        told.content_type = info.headers.get("content-type", "binary/octet-stream")
        if partial:
            told.range = wanted.content_range(info.size_bytes)
        metadata = self._metadata(told)
        status = 206 if partial else 200
        return FRAME.pack(position, status, len(metadata), wanted.stop - wanted.start) + metadata

    def closing(self, size_bytes: int) -> bytes:  # noqa: ARG002 - nothing, whatever its size
        """As `Framing.closing`."""
        return b""

    def failure(self, position: int, key: str, error: S3Error) -> bytes:  # noqa: ARG002
        """As `Framing.failure`."""
        told = _Failure(_text(error.code), _text(error.message))
        metadata = self._encode(told)
        return FRAME.pack(position, error.status, len(metadata), 0) + metadata

    def end(self, *, objects: int, failed: int) -> bytes:
        """As `Framing.end`."""
        metadata = self._encode(_End(objects, failed))
        return FRAME.pack(END_POSITION, 0, len(metadata), 0) + metadata

    def _metadata(self, told: _Metadata) -> bytes:
        try:
            metadata = self._encode(told)
        except UnicodeEncodeError:
            # An origin's header that is not text: JSON has no way to tell it.
            metadata = b""
        if 0 < len(metadata) <= _METADATA_BYTES:
            return metadata
        told.content_type = UNSET
        told.etag = _text(told.etag)
        return self._encode(told)


def _text(text: str) -> str:
    """What an origin says, as far as JSON can tell it."""
    return text[:_TEXT_CHARACTERS].encode("utf-8", "replace").decode()
