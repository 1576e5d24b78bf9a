"""Debian's kernel for the virtual machines: downloaded once, kept with the modules they load."""

import lzma
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.rdma.vm.missing import find

PACKAGE = "linux-image-amd64"
# Of the package's lib/modules/VERSION, what may hold the modules below.
_DRIVERS = ("block", "char", "infiniband", "net", "virtio")
_WANTED = (
    "modules.*",
    *(f"kernel/{kind}/*" for kind in ("arch", "crypto", "fs", "lib", "net")),
    *(f"kernel/drivers/{kind}/*" for kind in _DRIVERS),
)
# In the order in which a machine wants them.
MODULES = (
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "ext4",
    "overlay",
    "dummy",
    "sch_netem",
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
)


class NoKernelError(Exception):
    """The kernel cannot be had; says what was tried."""


def kernel(cache: Path, release: str | None = None) -> Path:
    """The folder with `vmlinux` and `modules/` of Debian's kernel, downloaded if it is not there:
    of this machine's release, or of `release` ("trixie").

    NoKernelError if the package is not known here or cannot be downloaded.
    """
    if release is not None:
        cache = cache / release
    for kept in sorted(cache.glob("kernel-*/vmlinux")):
        return kept.parent
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacking-") as work:
        folder = Path(work)
        options = [] if release is None else _other_release(release, folder / "apt")
        name = _package_name(options)
        words = ["apt-get", *options, "download", "-q", name]
        _run(words, folder, f"{name} could not be downloaded")
        package = next(folder.glob("*.deb"))
        _unpack(package, folder, name.removeprefix("linux-image-"))
        made = cache / f"kernel-{name.removeprefix('linux-image-')}"
        (folder / "made").rename(made)
    return made


def load_order(dependencies: str, wanted: tuple[str, ...]) -> list[str]:
    """The files to load, in order, for the modules wanted and what they stand on.

    `dependencies` is a modules.dep: a line a module, what it needs last is loaded first. What is
    built into the kernel is not in it and needs no loading.
    """
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in dependencies.splitlines():
        file, _, rest = line.partition(":")
        needs[_module_name(file)] = (file, rest.split())
    order: dict[str, None] = {}
    for name in wanted:
        if name in needs:
            file, others = needs[name]
            order.update(dict.fromkeys([*reversed(others), file]))
    return list(order)


def unpacked(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage that is packed with xz; the bzImage itself if it is packed
    otherwise. Under emulation unpacking it takes longer than all else of a boot."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset :][:length]
    if not payload.startswith(b"\xfd7zXZ\x00"):
        return image
    return lzma.LZMADecompressor().decompress(payload)


def _other_release(release: str, folder: Path) -> list[str]:
    """Options for an apt that knows that release, from where this machine has its own, and keeps
    what it knows in the folder."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    sources = [line for line in done.stdout.split() if "security" not in line]
    if not sources:
        raise NoKernelError(f"apt knows no place to download from: {done.stderr.strip()}")
    for made in ("state/lists/partial", "cache/archives/partial"):
        (folder / made).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {sources[0]} {release} main\n")
    told = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in told.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", *options, "update", "-q"], folder, f"apt cannot be told of {release}")
    return options


def _package_name(options: Sequence[str]) -> str:
    done = subprocess.run(
        ["apt-cache", *options, "depends", PACKAGE], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise NoKernelError(f"{PACKAGE}, of which apt knows nothing here: {done.stderr.strip()}")


def _unpack(package: Path, folder: Path, version: str) -> None:
    # From trixie on the package has them under usr.
    modules = f"*/lib/modules/{version}"
    with subprocess.Popen(
        ["dpkg", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
    ) as reading:
        _run(
            ["tar", "-x", "--wildcards", f"./boot/vmlinuz-{version}"]
            + [f"{modules}/{wanted}" for wanted in _WANTED],
            folder,
            f"{package.name} could not be unpacked",
            stdin=reading.stdout,
        )
    if not (folder / "lib").exists():
        (folder / "lib").symlink_to(folder / "usr" / "lib")
    depmod = find("depmod") or "depmod"
    _run([depmod, "-b", str(folder), version], folder, "depmod failed")
    made = folder / "made"
    made.mkdir()
    (made / "vmlinux").write_bytes(unpacked((folder / "boot" / f"vmlinuz-{version}").read_bytes()))
    root = folder / "lib" / "modules" / version
    for file in ["modules.dep", *load_order((root / "modules.dep").read_text(), MODULES)]:
        kept = made / "modules" / file
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, kept)


def _run(argv: list[str], folder: Path, what: str, stdin: IO[bytes] | None = None) -> None:
    done = subprocess.run(
        argv,
        cwd=folder,
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise NoKernelError(f"{what}: {done.stderr.strip()[-500:]}")


def _module_name(file: str) -> str:
    return Path(file).name.partition(".ko")[0].replace("-", "_")
