"""Runs a command in a virtual machine with verbs, or one each in two on one wire.

    python -m tests.rdma.vm [--release trixie] run COMMAND…
    python -m tests.rdma.vm pair --first 'COMMAND…' COMMAND…
    python -m tests.rdma.vm test [--within SECONDS] -- [ARGUMENTS OF PYTEST…]

`--release`: with the kernel of that release of Debian instead of this machine's; `--seconds`,
`--boot-seconds`: for how long. `test` runs tests/rdma/verbs in one and tests/rdma/link in the
second of two, where the first runs link/server.sh, says how long each took, and ends what is not
done `--within` so many seconds of its start. RDMA_MAY_BE_MISSING=1 lets it pass where no virtual
machine can run.

The status is the command's (of two, the second's). Besides: 69 something is missing here, 70 a
machine did not boot, or its command did not end in time.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rdma.vm.images import empty_disk, python_images
from tests.rdma.vm.initrd import initrd
from tests.rdma.vm.kernel import NoKernelError, kernel
from tests.rdma.vm.machine import HungError, Machine, Running, wait, wait_pair
from tests.rdma.vm.missing import bindings, missing

REPOSITORY = Path(__file__).parents[3]
CACHE = REPOSITORY / ".tools" / "rdma-vm"
MISSING = 69
HUNG = 70
_TAIL_LINES = 60
PYVERBS = CACHE / "python"
_DISK_BYTES = 512 * 1024**2
# Six minutes are usual, on two cores that have nothing else to do.
_WITHIN_SECONDS = 900.0
# What is tested in which machine.
_FOLDERS = {"one": "tests/rdma/verbs", "second": "tests/rdma/link"}


class MissingError(Exception):
    """This machine lacks something; each argument is one thing."""


class Lab:
    """What all machines share: kernel, first files, images. MissingError says what is not here."""

    def __init__(self, boot_seconds: float, seconds: float, release: str | None = None) -> None:
        lacking = missing(PYVERBS)
        if lacking:
            raise MissingError(*lacking)
        try:
            self._kernel = kernel(CACHE, release)
        except NoKernelError as error:
            raise MissingError(str(error)) from error
        self._initrd = initrd(self._kernel)
        self._images = python_images(CACHE / "images")
        self._limits = (boot_seconds, seconds)

    def run(self, command: Sequence[str]) -> int:
        """The command's status, in a machine alone. HungError."""
        folder = self._folder("one")
        machine = Machine(
            folder,
            command,
            REPOSITORY,
            environ=self._environ("one"),
            images=self._images,
            disk=empty_disk(folder / "disk", _DISK_BYTES),
        )
        with self._start(machine, None) as running:
            return self._told(running, lambda: wait(running, *self._limits))

    def pair(self, first: Sequence[str], second: Sequence[str], *, shows: bool = False) -> int:
        """The second command's status, each in a machine of its own on one wire. `shows`: what it
        says comes in one piece at its end. The first is
        a server: it is ended with the second. HungError."""
        # Short: a socket's path holds some hundred signs.
        with tempfile.TemporaryDirectory(prefix="rdma-", dir="/tmp") as name:
            sockets = (Path(name) / "1", Path(name) / "2")
            machines = []
            shared = self._folder("shared")
            for number, command in enumerate((first, second), start=1):
                role = ("first", "second")[number - 1]
                machines.append(
                    Machine(
                        self._folder(role),
                        command,
                        REPOSITORY,
                        address=f"10.77.0.{number}",
                        wire=(sockets[number - 1], sockets[2 - number]),
                        environ=self._environ(role),
                        images=self._images,
                        shared=shared,
                        cores=1,
                        memory_mib=2560,
                    )
                )
            said = machines[0].folder / "output.log"
            told = machines[1].folder / "output.log" if shows else None
            try:
                with self._start(machines[0], said) as one, self._start(machines[1], told) as two:
                    status = self._told(two, lambda: wait_pair(one, two, *self._limits))
            finally:
                if told is not None:
                    _say(told.read_text(errors="replace"))
            if status != 0:
                _show("what the first said", said)
            return status

    def limit_to(self, seconds: float) -> None:
        """No machine runs longer than that from now on, however long it was to have."""
        boot_seconds, most_seconds = self._limits
        self._limits = (min(boot_seconds, seconds), min(most_seconds, seconds))

    def _start(self, machine: Machine, output: Path | None) -> Running:
        return Running(machine, self._kernel / "vmlinux", self._initrd, output)

    def _folder(self, role: str) -> Path:
        folder = CACHE / "runs" / role
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _environ(self, role: str) -> dict[str, str]:
        return {
            "FEEDRACK_RDMA_GUEST": role,
            # These files also for programs that are installed from elsewhere.
            "PYTHONPATH": f"{bindings(PYVERBS)}:{REPOSITORY}",
            "TMPDIR": "/run/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "VIRTUAL_ENV": sys.prefix,
        }

    def _told(self, running: Running, waiting: Callable[[], int]) -> int:
        started = time.monotonic()
        try:
            status = waiting()
        except HungError:
            _show("the kernel's last words", running.machine.console)
            raise
        if status != 0:
            _show("the kernel's last words", running.machine.console)
        _say(f"[{time.monotonic() - started:.0f} s, status {status}]")
        return status


class Limit:
    """How long all of it may take, of which a part is over already."""

    def __init__(self, within: float, now: Callable[[], float] = time.monotonic) -> None:
        self._within = within
        self._now = now
        self._began = now()

    def __str__(self) -> str:
        return f"{self.gone:.0f} s of at most {self._within:.0f} s"

    @property
    def gone(self) -> float:
        """Seconds since it began."""
        return self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds until it is over, 0 from then on."""
        return max(0.0, self._within - self.gone)


def _test(lab: Lab, arguments: Sequence[str], limit: Limit) -> int:
    """Both parts, also if the first fails; the first status that is not 0. HungError where there
    is no time to begin."""
    # What no test imports either: processes of a node would each compile it anew in a machine.
    compiling = [sys.executable, "-m", "compileall", "-q", "gateway", "feedrack"]
    subprocess.run(compiling, cwd=REPOSITORY, check=True)
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=300"]
    for role, folder in _FOLDERS.items():
        try:
            collected = subprocess.run(
                [*pytest, "--collect-only", "-qq", folder],
                cwd=REPOSITORY,
                env=_compiling()
                | {"FEEDRACK_RDMA_GUEST": role, "PYTHONPATH": str(bindings(PYVERBS))},
                capture_output=True,
                text=True,
                timeout=limit.left,
            )
        except subprocess.TimeoutExpired as error:
            raise HungError(f"the tests were not even collected after {limit}") from error
        if collected.returncode != 0:
            _say(collected.stdout, collected.stderr)
            return collected.returncode
    server = ["sh", "tests/rdma/link/server.sh"]
    lab.limit_to(limit.left)
    return at_once(
        {
            _FOLDERS["one"]: lambda: lab.run([*pytest, *arguments, _FOLDERS["one"]]),
            _FOLDERS["second"]: lambda: lab.pair(
                server, [*pytest, *arguments, _FOLDERS["second"]], shows=True
            ),
        },
        limit,
    )


def at_once(parts: Mapping[str, Callable[[], int]], limit: Limit) -> int:
    """The first status of the parts that is not 0: all run at the same time, since an emulated
    processor is one thread's work, and each waits a lot. Says how long each took, and all."""

    def timed(name: str) -> tuple[int, str]:
        began = limit.gone
        try:
            status, why = parts[name](), ""
        except HungError as error:
            status, why = HUNG, f": the virtual machine hung: {error}"
        return status, f"{name}: {limit.gone - began:.0f} s, status {status}{why}"

    with ThreadPoolExecutor(len(parts)) as pool:
        done = list(pool.map(timed, parts))
    _say(*(said for _, said in done), f"all: {limit}")
    if not limit.left:
        _say("that was too long: something hangs, or this machine is too slow (--within SECONDS)")
    return next((status for status, _ in done if status != 0), 0 if limit.left else HUNG)


def _compiling() -> dict[str, str]:
    """The environment of a Python that keeps what it compiles: tests as pytest rewrites them,
    which it could not keep in a machine."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _show(what: str, file: Path) -> None:
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    _say(f"--- {what} ({file})", *lines[-_TAIL_LINES:], "---")


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.vm")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--boot-seconds", type=float, default=120.0)
    parser.add_argument("--release")
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run")
    pair = commands.add_parser("pair")
    test = commands.add_parser("test")
    pair.add_argument("--first", required=True, type=shlex.split)
    test.add_argument("--within", type=float, default=_WITHIN_SECONDS)
    for each in (run, pair, test):
        each.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    limit = Limit(asked.within) if asked.what == "test" else Limit(float("inf"))
    try:
        lab = Lab(asked.boot_seconds, asked.seconds, asked.release)
        if asked.what == "test":
            return _test(lab, command, limit)
        if asked.what == "pair":
            return lab.pair(asked.first, command)
        return lab.run(command)
    except MissingError as error:
        _say("no virtual machine here; missing:", *(f"  {thing}" for thing in error.args))
        if asked.what == "test" and os.environ.get("RDMA_MAY_BE_MISSING") == "1":
            _say("RDMA_MAY_BE_MISSING=1: not tested here")
            return 0
        return MISSING
    except HungError as error:
        _say(f"the virtual machine hung: {error}")
        return HUNG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
