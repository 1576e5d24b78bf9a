"""The cache's folder: who may use it, what is in it, and whether what it says may be believed.

    LOCK         held by the one process that uses the folder
    FORMAT       the layout and the chunk size; another one starts empty
    SESSION      present while the index tells the truth about what is current, and touched often
    index.lmdb   what is held
    chunks/xx/   a file per chunk
    shards/      a file per shard
    tmp/         chunks on their way; cleared at the start

Nothing here is asynchronous: call from a thread.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
from msgspec import Struct

from gateway.config import ConfigError
from gateway.tiers.layout import chunk_path, index_path, shard_path

_VERSION = 1
_PROBE_BYTES = 1024**2
_CHECK_SECONDS = 600
# Between the last sign of life in the folder and the next start.
_MAX_SILENCE_SECONDS = 60
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Run in a process of its own: a file that is damaged inside can kill whoever maps it.
_CHECK = """
import lmdb, os, sys
size = os.path.getsize(sys.argv[1])
env = lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False, create=False, max_dbs=16)
info = env.info()
if (info["last_pgno"] + 1) * env.stat()["psize"] > size:
    sys.exit("cut short")
with open(os.devnull, "wb") as sink:
    env.copyfd(sink.fileno(), compact=True)
"""

S = TypeVar("S", bound=Struct)

log = structlog.get_logger()


class _Format(Struct, frozen=True):
    version: int
    chunk_bytes: int


class _Session(Struct, frozen=True):
    boot_id: str
    clean: bool


class Folder:
    """The folder, locked. OSError where the disk refuses, ConfigError where another process has
    it. `trusted`: whether what is remembered of objects was kept current to the end."""

    def __init__(self, path: Path, chunk_bytes: int) -> None:
        self.path = path
        self.index_path = index_path(path)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ConfigError(f"cache.path: another process uses {path}") from error
        except OSError:
            os.close(self._lock)
            raise
        try:
            self.trusted = self._begin(chunk_bytes)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self, *, clean: bool) -> None:
        """Gives the folder up. `clean`: everything was written."""
        try:
            if clean:
                self._write_session(clean=True)
        finally:
            os.close(self._lock)

    def begin_session(self) -> None:
        """From now on what is remembered is kept current."""
        self._write_session(clean=False)

    def beat(self) -> None:
        """Gives a sign of life. OSError where the disk does not take it.

        A disk that takes nothing does not take `distrust` either, should the process be killed
        meanwhile; then the silence tells. Without a session there is nothing to keep alive."""
        with suppress(FileNotFoundError):
            os.utime(self.path / "SESSION")

    def distrust(self) -> None:
        """What is remembered could not be kept current: the next start must not believe it."""
        try:
            (self.path / "SESSION").unlink(missing_ok=True)
        except OSError:
            log.exception("the cache's session cannot be ended")

    def is_there(self) -> bool:
        """Whether the path still leads to the folder that was locked."""
        try:
            there = os.stat(self.path / "LOCK")  # noqa: PTH116 - beside fstat
        except OSError:
            return False
        ours = os.fstat(self._lock)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def probe(self) -> None:
        """Writes a little and syncs it. OSError where the disk does not take it."""
        path = self.path / "tmp" / "probe"
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _PROBE_BYTES)
            os.pwrite(descriptor, bytes(4096), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()

    def start_over(self) -> None:
        """Removes everything that is held."""
        for name in ("chunks", "shards"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.remove_index()
        self._make_folders()

    def remove_index(self) -> None:
        """Removes the index. OSError.

        Its lock file goes too: other processes may still use it together with the old index, and
        a new one must not take its numbers from there."""
        for path in (self.index_path, self.index_path.with_name("index.lmdb-lock")):
            path.unlink(missing_ok=True)

    def index_is_sound(self) -> bool:
        """Whether the index can be opened and followed from end to end without harm."""
        if not self.index_path.exists():
            return True
        check = subprocess.run(  # noqa: S603 - our own interpreter, our own file
            [sys.executable, "-c", _CHECK, str(self.index_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
        if check.returncode:
            reason = check.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            log.error("index damaged", exit_status=check.returncode, reason=reason)
        return check.returncode == 0

    def chunks(self) -> dict[bytes, tuple[int, int]]:
        """The chunk files by key: (mtime in nanoseconds, size). What is no chunk is removed."""
        found = {}
        for folder in (self.path / "chunks").iterdir():
            for entry in os.scandir(folder):
                key = _chunk_key(entry.name)
                if key is None or Path(entry.path) != chunk_path(self.path, key):
                    Path(entry.path).unlink(missing_ok=True)
                    continue
                stat = entry.stat()
                found[key] = (stat.st_mtime_ns, stat.st_size)
        return found

    def shards(self) -> dict[int, int]:
        """The shard files by number, with their sizes. What is no shard is removed."""
        found = {}
        for path in (self.path / "shards").iterdir():
            if path.suffix == ".lmdb" and path.stem.isascii() and path.stem.isdigit():
                found[int(path.stem)] = path.stat().st_size
            else:
                path.unlink(missing_ok=True)
        return found

    def remove_chunk(self, key: bytes) -> None:
        """Removes a chunk's file, if it is there."""
        chunk_path(self.path, key).unlink(missing_ok=True)

    def remove_shard(self, shard: int) -> None:
        """Removes a shard's file, if it is there."""
        shard_path(self.path, shard).unlink(missing_ok=True)

    def _begin(self, chunk_bytes: int) -> bool:
        ours = _Format(_VERSION, chunk_bytes)
        path = self.path / "FORMAT"
        found = _read(path, _Format)
        if found != ours:
            if found is not None:
                log.warning("cache of another format removed", found=repr(found))
            self.start_over()
            path.write_bytes(msgspec.json.encode(ours))
        shutil.rmtree(self.path / "tmp", ignore_errors=True)
        self._make_folders()
        session = _read(self.path / "SESSION", _Session)
        if session is None or session.clean:
            return session is not None
        silence_seconds = abs(time.time() - (self.path / "SESSION").stat().st_mtime)
        return session.boot_id == _boot_id() and silence_seconds <= _MAX_SILENCE_SECONDS

    def _make_folders(self) -> None:
        (self.path / "tmp").mkdir(exist_ok=True)
        (self.path / "shards").mkdir(exist_ok=True)
        for number in range(256):
            (self.path / "chunks" / f"{number:02x}").mkdir(parents=True, exist_ok=True)

    def _write_session(self, *, clean: bool) -> None:
        # A power cut may undo the rename, and with it a clean end; never invent one.
        staged = self.path / "tmp" / "SESSION"
        with staged.open("wb") as file:
            file.write(msgspec.json.encode(_Session(_boot_id(), clean)))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.path / "SESSION")
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(path: Path, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        log.warning("unreadable", path=str(path), reason=str(error))
        return None


def _boot_id() -> str:
    return _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""


def _chunk_key(name: str) -> bytes | None:
    digest, dot, number = name.partition(".")
    try:
        key = bytes.fromhex(digest) + int(number).to_bytes(4, "big")
    except (ValueError, OverflowError):
        return None
    return key if dot and len(key) == 20 else None
