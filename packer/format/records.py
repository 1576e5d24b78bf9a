"""What an index says of one key, and how it lies in LMDB, whose keys end at 511 bytes.

Everything here is pure. The encoding is MessagePack (https://msgpack.org) by position, so that a
later version can add fields at the end and an older reader still reads what it knows.
"""

import re
from collections.abc import Iterator

import msgspec
from msgspec import Struct

# The first byte of an LMDB key: what the index says of itself, or of an object.
ABOUT = b"\x00"
OBJECT = b"\x01"
# 1 + 506 + 4 = 511. A key of that many bytes and more shares values with those that begin alike.
HEAD_BYTES = 506
ORDINAL_BYTES = 4
GROUP_BYTES = 64 * 1024

_MD5 = re.compile(r"[0-9a-f]{32}(?:-[0-9]+)?\Z")


class Record(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One key of an index. `shard` None: a plain record, of an object that stays where it is."""

    size_bytes: int
    etag: bytes
    modified_ms: int
    shard: int | None = None
    offset: int = 0
    checksum: int = 0
    headers: int | dict[str, str] = msgspec.field(default_factory=dict)
    generation: int = 0
    checksums: dict[str, str] = msgspec.field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()
    made: bool = False


Grouped = list[tuple[bytes, Record]]

_encoder = msgspec.msgpack.Encoder()
_record = msgspec.msgpack.Decoder(Record)
_grouped: msgspec.msgpack.Decoder[Grouped] = msgspec.msgpack.Decoder(list[tuple[bytes, Record]])


def etag_bytes(etag: str) -> bytes:
    """An unquoted ETag as a record keeps it: `m`, 16 bytes and the count of parts where it is an
    MD5 in hex, else `t` and the text."""
    if _MD5.match(etag):
        return b"m" + bytes.fromhex(etag[:32]) + etag[32:].encode()
    return b"t" + etag.encode()


def etag_text(etag: bytes) -> str:
    """The ETag that `etag_bytes` was given."""
    return etag[1:17].hex() + etag[17:].decode() if etag[:1] == b"m" else etag[1:].decode()


def encode_record(record: Record) -> bytes:
    """The value of a key of less than HEAD_BYTES bytes."""
    return _encoder.encode(record)


def decode_record(raw: bytes) -> Record:
    """The record that was encoded. msgspec.MsgspecError where it is none."""
    return _record.decode(raw)


def encode_group(group: list[tuple[bytes, bytes]]) -> bytes:
    """The value of long keys that begin alike: the rest of each, and its encoded record."""
    return _encoder.encode([(rest, msgspec.Raw(raw)) for rest, raw in group])


def decode_group(raw: bytes) -> Grouped:
    """The rests and records of a group, in order. msgspec.MsgspecError where it is none."""
    return _grouped.decode(raw)


def group_key(head: bytes, ordinal: int) -> bytes:
    """The LMDB key of the `ordinal`-th group of keys that begin with `head`."""
    return OBJECT + head + ordinal.to_bytes(ORDINAL_BYTES, "big")


class Grouper:
    """Turns keys in order, with their encoded records, into LMDB's keys and values in order."""

    def __init__(self) -> None:
        self._head = b""
        self._ordinal = 0
        self._group: list[tuple[bytes, bytes]] = []
        self._group_bytes = 0

    def add(self, key: bytes, raw: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What is ready to be written once `key` has come."""
        if len(key) < HEAD_BYTES:
            yield from self.finish()
            yield OBJECT + key, raw
            return
        head, rest = key[:HEAD_BYTES], key[HEAD_BYTES:]
        if head != self._head:
            yield from self.finish()
            self._head, self._ordinal = head, 0
        elif self._group_bytes + len(rest) + len(raw) > GROUP_BYTES:
            yield from self._flush()
        self._group.append((rest, raw))
        self._group_bytes += len(rest) + len(raw)

    def finish(self) -> Iterator[tuple[bytes, bytes]]:
        """What is left when no more keys begin alike."""
        yield from self._flush()
        self._head = b""

    def _flush(self) -> Iterator[tuple[bytes, bytes]]:
        if self._group:
            yield group_key(self._head, self._ordinal), encode_group(self._group)
            self._ordinal += 1
            self._group = []
            self._group_bytes = 0
