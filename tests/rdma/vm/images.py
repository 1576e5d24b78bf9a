"""Folders as images for a virtual machine's disks: thousands of small files are read many times
faster from one than over 9p."""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.rdma.vm.missing import find

# Room for the file system's own tables beside the files.
_SPARE = 1.15
_SPARE_BYTES = 16 << 20
_BLOCK = 4096


def python_images(cache: Path) -> list[tuple[Path, Path]]:
    """Images of what this Python imports (the packages and its own library), each with the folder
    it is of, byte-compiled: compiling in the machine would take minutes."""
    return [(image(cache, folder), folder) for folder in python_folders()]


def python_folders() -> list[Path]:
    """Where they are. A link on the way would lead nowhere while a machine is not yet in the files
    of this one, and that is when it puts images in their places."""
    return [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "stdlib")]


def image(cache: Path, folder: Path) -> Path:
    """The image of a folder, made anew if the folder's packages are others than then."""
    cache.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    made = cache / f"{name}-{fingerprint(folder)}.ext4"
    if not made.exists():
        for old in cache.glob(f"{name}-*"):
            old.unlink()
        with tempfile.TemporaryDirectory(dir=cache, prefix="copied-") as work:
            copied = Path(work) / "root"
            shutil.copytree(folder, copied, symlinks=True, ignore=_left_out)
            _compile(copied, folder)
            _make(Path(work) / "image", copied)
            (Path(work) / "image").rename(made)
    return made


def empty_disk(file: Path, size_bytes: int) -> Path:
    """An empty file system for a machine to write to; takes room as it is written."""
    with file.open("wb") as empty:
        empty.truncate(size_bytes)
    words = [find("mke2fs") or "mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), str(file)]
    subprocess.run(words, check=True, capture_output=True)
    return file


def fingerprint(folder: Path) -> str:
    """Differs once a package is added, removed or replaced by another version: a folder
    `name-version.dist-info` stands beside each. Times would differ after compiling too."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__")
    return hashlib.sha256("\n".join([sys.version, *names]).encode()).hexdigest()[:16]


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What no test in a machine imports, and is large."""
    top = Path(folder).name
    return {
        name
        for name in names
        if name in ("site-packages", "dist-packages", "mypy", "mypyc", "ruff")
        or (top.startswith("python3") and name in ("test", "idlelib", "lib2to3", "ensurepip"))
        or name.startswith("config-3")
    }


def _compile(copied: Path, folder: Path) -> None:
    # Its status says whether some file is not Python of this version: of packages, some are not.
    words = [sys.executable, "-m", "compileall", "-q", "-j", "0"]
    subprocess.run(
        [*words, "-s", str(copied), "-p", str(folder), str(copied)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _make(file: Path, folder: Path) -> None:
    size = int(sum(_sizes(folder)) * _SPARE) + _SPARE_BYTES
    with file.open("wb") as empty:
        empty.truncate(size // _BLOCK * _BLOCK)
    words = [find("mke2fs") or "mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal"]
    words += ["-m", "0", "-N", str(sum(1 for _ in folder.rglob("*")) + 64), "-b", str(_BLOCK)]
    subprocess.run([*words, "-d", str(folder), str(file)], check=True, capture_output=True)


def _sizes(folder: Path) -> Iterator[int]:
    for each in folder.rglob("*"):
        # A file takes whole blocks, a folder at least one.
        yield (each.lstat().st_size + _BLOCK) // _BLOCK * _BLOCK
