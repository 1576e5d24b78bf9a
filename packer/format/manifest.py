"""Manifests, and where everything of a pack lies in its bucket. Pure."""

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

FORMAT_VERSION = 1
PACKS = ".feedrack/packs/"
RESERVED = ".feedrack/"
# How old at most a gateway's knowledge of the manifests is while it takes writes.
SETTLE_SECONDS = 30.0
# For how long after its successor a pack, and a folded override, stay where they are.
KEEP_SECONDS = 86_400.0

State = Literal["opening", "whole", "dropped"]

_GENERATION = re.compile(r"(\d{12})\.json\Z")
_SEQUENCE = re.compile(r"(\d{16})\.json\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class ManifestError(Exception):
    """What lies there is no manifest that this version understands."""


class ShardFile(Struct, frozen=True, kw_only=True):
    """A shard: its file's hash and size, and the objects in it (living or not)."""

    sha256: str
    size_bytes: int
    objects: int
    object_bytes: int


class IndexFile(Struct, frozen=True, kw_only=True):
    """An index: its file's hash and size."""

    sha256: str
    size_bytes: int


class Manifest(Struct, frozen=True, kw_only=True):
    """A pack in one piece: what it consists of, and what it is a pack of."""

    state: State
    generation: int
    pack_id: str
    bucket: str
    prefix: str
    tool: str
    created: str
    format_version: int = FORMAT_VERSION
    order: str = "lexical"
    objects: int = 0
    packed_objects: int = 0
    packed_bytes: int = 0
    largest_bytes: int = 0
    shards: tuple[ShardFile, ...] = ()
    index: IndexFile | None = None
    overrides_through: int = 0
    originals_gone_through: int = 0


_decoder = msgspec.json.Decoder(Manifest)


class Place:
    """Where the packs of one prefix lie: keys of the bucket."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.name = hashlib.sha256(prefix.encode()).hexdigest()[:32]
        self.root = f"{PACKS}{self.name}/"
        self.lock = f"{self.root}lock"
        self.manifests = f"{self.root}manifests/"
        self.shards = f"{self.root}shards/"
        self.indexes = f"{self.root}indexes/"
        self.overrides = f"{self.root}overrides/"
        self.building = f"{self.root}building/"

    def manifest(self, generation: int) -> str:
        """The key of a generation's manifest."""
        return f"{self.manifests}{generation:012}.json"

    def shard(self, sha256: str) -> str:
        """The key of a shard."""
        return f"{self.shards}{sha256}.lmdb"

    def index(self, sha256: str) -> str:
        """The key of an index."""
        return f"{self.indexes}{sha256}.lmdb"

    def override(self, sequence: int) -> str:
        """The key of a record of the log, from 1 on."""
        return f"{self.overrides}{sequence:016}.json"


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest as it is stored."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(raw: bytes) -> Manifest:
    """The manifest that is stored. ManifestError for anything that must not be believed."""
    try:
        version = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("format_version")
        if version is None or bytes(version) != b"%d" % FORMAT_VERSION:
            raise ManifestError("a pack of another version of the format")
        manifest = _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"not a manifest: {error}") from error
    files = (*manifest.shards, *((manifest.index,) if manifest.index is not None else ()))
    if not all(_SHA256.match(file.sha256) and file.size_bytes > 0 for file in files):
        raise ManifestError("a file without a proper name or size")
    if (manifest.state == "whole") != (manifest.index is not None):
        raise ManifestError(f"a manifest that is {manifest.state} and has the wrong index")
    return manifest


def current(keys: Iterable[str]) -> int:
    """The generation that counts, of the keys under `Place.manifests`; 0 where there is none."""
    return max((int(found[1]) for key in keys if (found := _GENERATION.search(key))), default=0)


def generation_of(key: str) -> int | None:
    """The generation of a manifest's key."""
    found = _GENERATION.search(key)
    return None if found is None else int(found[1])


def sequence_of(key: str) -> int | None:
    """The number of an override record's key."""
    found = _SEQUENCE.search(key)
    return None if found is None else int(found[1])
