"""The log of overrides: what gateways wrote over a pack since it was made. Pure.

Any record on a key says: ask the origin, not the pack. What else it says serves listings, and the
one case in which the pack's bytes are still right: a PUT of the same bytes.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from packer.format.records import Record, etag_bytes

FORMAT_VERSION = 1


class OverrideError(Exception):
    """What lies there is no record of the log that this version understands."""


class Override(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One write over a key. The facts are those of a `put`; `unsure` has none."""

    op: Literal["put", "delete", "unsure"]
    key: str
    etag: str = ""
    size_bytes: int = 0
    modified_ms: int = 0
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()


class OverrideBatch(Struct, frozen=True, kw_only=True):
    """What a gateway appends at once."""

    node: str
    records: tuple[Override, ...]
    format_version: int = FORMAT_VERSION


_decoder = msgspec.json.Decoder(OverrideBatch)


def encode_overrides(batch: OverrideBatch) -> bytes:
    """A batch as it is stored."""
    return msgspec.json.encode(batch)


def decode_overrides(raw: bytes) -> OverrideBatch:
    """The batch that is stored. OverrideError where it is none of this version."""
    try:
        batch = _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise OverrideError(f"not a record of overrides: {error}") from error
    if batch.format_version != FORMAT_VERSION:
        raise OverrideError("overrides of another version of the format")
    return batch


class Stand(NamedTuple):
    """What the log says of a key: its last override, whether listings may believe it, and whether
    all that happened to the key was a `put`."""

    override: Override
    sure: bool
    written: bool = False


class Overrides:
    """All overrides in force over a pack that has the log folded in `through` a number."""

    def __init__(self, through: int = 0) -> None:
        self._stands: dict[str, tuple[Override, str, bool, bool]] = {}
        self.through = through

    def __len__(self) -> int:
        return len(self._stands)

    def add(self, sequence: int, batch: OverrideBatch) -> None:
        """Takes in the next record. OverrideError where one is missing before it."""
        if sequence != self.through + 1:
            raise OverrideError(f"record {self.through + 1} of the log is missing")
        self.through = sequence
        for override in batch.records:
            before = self._stands.get(override.key)
            alone = before is None or (before[2] and before[1] == batch.node)
            written = override.op == "put" and (before is None or before[3])
            self._stands[override.key] = (override, batch.node, alone, written)

    def get(self, key: str) -> Stand | None:
        """What holds for a key; None where the pack speaks for it."""
        found = self._stands.get(key)
        if found is None:
            return None
        override, _, alone, written = found
        return Stand(override, alone and override.op != "unsure", written)

    def items(self) -> Iterator[tuple[str, Stand]]:
        """Every overridden key with what holds for it, in the order of a listing."""
        for key in self:
            stand = self.get(key)
            if stand is not None:
                yield key, stand

    def __iter__(self) -> Iterator[str]:
        """The overridden keys in the order of a listing."""
        return iter(sorted(self._stands, key=str.encode))


def folded(record: Record, stand: Stand | None) -> Record | None:
    """A packed record whose original is gone, with the log folded in: None where it was deleted."""
    if stand is None:
        return record
    override = stand.override
    if override.op != "put" or etag_bytes(override.etag) != record.etag:
        return None
    return msgspec.structs.replace(
        record,
        modified_ms=override.modified_ms,
        headers=override.headers,
        tags=override.tags,
    )
