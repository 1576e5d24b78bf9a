"""One virtual machine: what QEMU is told, what the machine is told, and its life."""

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rdma.vm.missing import find

# Room for a RoCE packet of 4096 bytes with its headers.
_MTU = 4200
_PREFIX_BITS = 24
_KERNEL_WORDS = (
    "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off nokaslr random.trust_cpu=on"
)
_POLL_SECONDS = 0.1


class HungError(Exception):
    """The machine did not come to its command, or the command did not end in time."""


@dataclass(frozen=True)
class Machine:
    """A machine to be: `command` runs as root in `cwd` with `environ` and no other variables.

    `images` stand in for folders, read-only; `disk` is an ext4 file system at /run/disk.
    With `wire` (a socket of its own and its peer's) the device of the verbs is a network card on
    that wire, else it is alone.
    """

    folder: Path
    command: Sequence[str]
    cwd: Path
    address: str = "10.77.0.1"
    wire: tuple[Path, Path] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[tuple[Path, Path]] = ()
    shared: Path | None = None
    disk: Path | None = None
    cores: int = 2
    memory_mib: int = 3072

    @property
    def console(self) -> Path:
        """Where the kernel's messages go."""
        return self.folder / "console.log"

    def images_table(self) -> str:
        """A line for each image: its disk, the folder it stands for."""
        folders = [str(folder) for _, folder in self.images]
        return "".join(f"{_disk(number)} {folder}\n" for number, folder in enumerate(folders))

    def enter(self) -> str:
        """The shell script that brings the device up and becomes the command."""
        card = "eth0" if self.wire else "dummy0"
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environ = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"} | dict(self.environ)
        words = [f"{name}={value}" for name, value in environ.items()]
        return "\n".join(
            [
                "set -e",
                f"export PATH={path}",
                "ulimit -l unlimited",
                "ip link set lo up",
                f"ip link set {card} mtu {_MTU} up",
                f"ip address add {self.address}/{_PREFIX_BITS} dev {card}",
                f"rdma link add rxe0 type rxe netdev {card}",
                *self._mounting(),
                f"cd {shlex.quote(str(self.cwd))}",
                f"exec env -i {shlex.join([*words, *self.command])}",
                "",
            ]
        )

    def _mounting(self) -> list[str]:
        if self.disk is None:
            return []
        device = f"/dev/{_disk(len(self.images))}"
        return ["mkdir -p /run/disk", f"mount -t ext4 {device} /run/disk"]

    def words(self, kernel: Path, initrd: Path) -> list[str]:
        """QEMU's command line."""
        told = [find("qemu-system-x86_64") or "qemu-system-x86_64"]
        told += ["-accel", "tcg,thread=multi", "-cpu", "max"]
        told += ["-smp", str(self.cores), "-m", str(self.memory_mib)]
        told += ["-nodefaults", "-display", "none", "-no-reboot"]
        told += ["-kernel", str(kernel), "-initrd", str(initrd), "-append", _KERNEL_WORDS]
        told += ["-serial", f"file:{_escaped(self.console)}"]
        told += ["-device", "virtio-serial-pci", "-chardev", "stdio,id=said,signal=off"]
        told += ["-device", "virtserialport,chardev=said"]
        folders = {"host": Path("/"), "vm": self.folder, "shared": self.shared or self.folder}
        for tag, path in folders.items():
            told += ["-fsdev", f"local,id={tag},path={_escaped(path)},security_model=none"]
            told[-1] += ",multidevs=remap" + (",readonly=on" if tag == "host" else "")
            told += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        files = [(file, ",readonly=on") for file, _ in self.images]
        if self.disk is not None:
            files.append((self.disk, ",cache=unsafe"))
        for number, (file, how) in enumerate(files):
            told += ["-drive", f"if=none,id=disk{number},format=raw{how},file={_escaped(file)}"]
            told += ["-device", f"virtio-blk-pci,drive=disk{number}"]
        if self.wire is not None:
            own, peer = self.wire
            told += ["-netdev", "dgram,id=wire,local.type=unix,remote.type=unix"]
            told[-1] += f",local.path={_escaped(own)},remote.path={_escaped(peer)}"
            mac = f"52:54:00:77:00:{int(self.address.rpartition('.')[2]):02x}"
            told += ["-device", f"virtio-net-pci,netdev=wire,mac={mac},host_mtu={_MTU}"]
        return told


class Running:
    """A machine that runs; what its command says goes where this process's output goes, or to
    the file `output`. Leaving the context ends it."""

    def __init__(self, machine: Machine, kernel: Path, initrd: Path, output: Path | None) -> None:
        self.machine = machine
        folder = machine.folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in ("up", "status"):
            (folder / left).unlink(missing_ok=True)
        (folder / "enter").write_text(machine.enter())
        (folder / "images").write_text(machine.images_table())
        self._started = time.monotonic()
        self._output = output.open("wb") if output is not None else None
        # QEMU takes the end of its input for the end of whoever reads its output: it gets none.
        self._qemu = subprocess.Popen(
            machine.words(kernel, initrd), stdin=subprocess.PIPE, stdout=self._output
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Pulls the plug, if it still runs."""
        self._qemu.kill()
        self._qemu.wait()
        if self._qemu.stdin is not None:
            self._qemu.stdin.close()
        if self._output is not None:
            self._output.close()

    @property
    def up(self) -> bool:
        """Whether it has come as far as its command."""
        return (self.machine.folder / "up").exists()

    def ended(self, boot_seconds: float, seconds: float) -> bool:
        """Whether it has ended. HungError if it should be further by now."""
        if self._qemu.poll() is not None:
            return True
        age = time.monotonic() - self._started
        if not self.up and age > boot_seconds:
            raise HungError(f"it did not boot within {boot_seconds:.0f} s")
        if age > seconds:
            raise HungError(f"its command did not end within {seconds:.0f} s")
        return False

    def status(self) -> int:
        """The status of the command of a machine that has ended. HungError if it left none."""
        try:
            return int((self.machine.folder / "status").read_text())
        except (FileNotFoundError, ValueError) as error:
            what = "under its command" if self.up else "in its boot"
            raise HungError(f"it ended {what} without a status") from error


def wait(running: Running, boot_seconds: float, seconds: float) -> int:
    """The status of the machine's command, once it has ended. HungError in due time."""
    while not running.ended(boot_seconds, seconds):
        time.sleep(_POLL_SECONDS)
    return running.status()


def wait_pair(first: Running, second: Running, boot_seconds: float, seconds: float) -> int:
    """The status of the second's command once it has ended; what the first's says counts only
    if it failed before."""
    first_ended = False
    while not second.ended(boot_seconds, seconds):
        if not first_ended and first.ended(boot_seconds, seconds):
            first_ended = True
            if (status := first.status()) != 0:
                return status
        time.sleep(_POLL_SECONDS)
    return second.status()


def _disk(number: int) -> str:
    return f"vd{chr(ord('a') + number)}"


def _escaped(path: Path) -> str:
    """QEMU's options end at a comma; two stand for one."""
    return str(path).replace(",", ",,")
