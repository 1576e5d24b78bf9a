"""What a machine lacks to run the virtual machines of these tests, in words for its owner."""

import ctypes.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Debian's package of the bindings is built for the release's own Python.
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")

# A command, and the package of Debian that brings it.
_COMMANDS = (
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("mke2fs", "e2fsprogs"),
    ("dpkg", "dpkg"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("tc", "iproute2"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
)
_FOLDERS = (*("/usr/local/sbin", "/usr/local/bin"), "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def find(command: str) -> str | None:
    """Where a command is, also in the folders that only root has on the path."""
    return shutil.which(command, path=":".join(_FOLDERS))


def missing(folder: Path) -> list[str]:
    """What is not there, one line a thing; `folder` holds the bindings (`bindings`)."""
    return list(_missing(folder))


def _missing(folder: Path) -> Iterator[str]:
    for command, package in _COMMANDS:
        if find(command) is None:
            yield f"the command {command} (Debian's package {package})"
    busybox = find("busybox")
    if busybox is not None and is_dynamic(Path(busybox).read_bytes()):
        yield "a busybox without shared libraries (Debian's package busybox-static)"
    if ctypes.util.find_library("ibverbs") is None:
        yield "libibverbs with the rxe provider (Debian's package ibverbs-providers)"
    if not PYVERBS.is_dir():
        yield f"{PYVERBS} (Debian's package python3-pyverbs)"
        return
    why = unimportable(folder)
    if why is not None:
        built = ", ".join(sorted({so.name.split(".")[1] for so in PYVERBS.glob("*.so")}))
        yield (
            f"a Python that Debian's pyverbs is built for: it is {built}, "
            f"this is {sys.implementation.cache_tag} at {sys.prefix} ({why})"
        )


def bindings(folder: Path) -> Path:
    """A folder for PYTHONPATH with pyverbs in it, and nothing else of Debian's packages: they
    would stand before the project's own."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "pyverbs"
    if not link.is_symlink():
        link.symlink_to(PYVERBS)
    return folder


def unimportable(folder: Path) -> str | None:
    """Why this Python cannot import pyverbs from the folder; None if it can."""
    done = subprocess.run(
        [sys.executable, "-c", "import pyverbs.device"],
        env={"PYTHONPATH": str(bindings(folder))},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


def is_dynamic(program: bytes) -> bool:
    """Whether a 64-bit ELF program asks for a loader of shared libraries (PT_INTERP)."""
    start = int.from_bytes(program[32:40], "little")
    size, count = (int.from_bytes(program[at : at + 2], "little") for at in (54, 56))
    kinds = (program[start + n * size : start + n * size + 4] for n in range(count))
    return any(int.from_bytes(kind, "little") == 3 for kind in kinds)
