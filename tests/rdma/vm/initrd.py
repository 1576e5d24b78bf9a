"""The first files of a virtual machine: busybox, the modules in their order, and `init.sh`."""

import gzip
import hashlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.rdma.vm.kernel import MODULES, load_order
from tests.rdma.vm.missing import find

_INIT = Path(__file__).with_name("init.sh")
_COMMANDS = ("cat", "chroot", "echo", "insmod", "mkdir", "mount", "poweroff", "sh", "sync")
_FOLDERS = ("bin", "dev", "host", "images", "modules", "new", "proc", "scratch", "shared", "sys")


def initrd(kernel: Path) -> Path:
    """The archive for this kernel and this `init.sh`, made if it is not there yet."""
    files = dict(_files(kernel))
    # Its name is its content, so that a change of the script makes another.
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    made = kernel / f"initrd-{digest.hexdigest()[:16]}.gz"
    if not made.exists():
        for old in kernel.glob("initrd-*.gz"):
            old.unlink()
        growing = made.with_suffix(".tmp")
        growing.write_bytes(
            gzip.compress(archive(_FOLDERS, files, dict.fromkeys(_COMMANDS, "busybox")), 1)
        )
        growing.rename(made)
    return made


def archive(
    folders: tuple[str, ...], files: Mapping[str, bytes], links: Mapping[str, str]
) -> bytes:
    """A cpio archive as the kernel unpacks it (newc); `links` are names in bin/ for another name
    there. All files may be run."""
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    entries += [(name, stat.S_IFREG | 0o755, content) for name, content in files.items()]
    entries += [(f"bin/{name}", stat.S_IFLNK | 0o777, to.encode()) for name, to in links.items()]
    entries.append(("TRAILER!!!", 0, b""))
    parts = []
    for number, (name, mode, content) in enumerate(entries, start=1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        parts += [_padded(head), _padded(content)]
    return b"".join(parts)


def _files(kernel: Path) -> Iterator[tuple[str, bytes]]:
    yield "init", _INIT.read_bytes()
    yield "bin/busybox", Path(find("busybox") or "busybox").read_bytes()
    modules = kernel / "modules"
    order = load_order((modules / "modules.dep").read_text(), MODULES)
    names = []
    for file in order:
        name = Path(file).name
        names.append(name)
        yield f"modules/{name}", (modules / file).read_bytes()
    yield "modules/order", "".join(f"{name}\n" for name in names).encode()


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
