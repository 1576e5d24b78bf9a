"""Where things lie under the cache's folder (`folder.py` says what each is)."""

from pathlib import Path


def index_path(folder: Path) -> Path:
    """The index."""
    return folder / "index.lmdb"


def chunk_path(folder: Path, key: bytes) -> Path:
    """The chunk with that key in the index."""
    name = key[:16].hex()
    return folder / "chunks" / name[:2] / f"{name}.{int.from_bytes(key[16:], 'big')}"


def shard_path(folder: Path, shard: int) -> Path:
    """The shard with that number."""
    return folder / "shards" / f"{shard}.lmdb"
