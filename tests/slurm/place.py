"""Where Slurm's programs run: on this machine, or in a root folder that has another release.

`FEEDRACK_SLURM_ROOT` names such a folder (tests/slurm/make-root.sh makes one). What the programs
share with this machine, first of all the lab's folder, is mounted in it at the same path, but only
in a mount namespace of the lab's own: whoever deletes the folder from outside never gets through to
the machine's files, and the mounts are gone when the lab's last process is.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CLIENTS = ("sinfo", "squeue", "scontrol", "sbatch", "srun", "salloc", "scancel", "sdiag")
_COMPILERS = ("gcc", "cc", "lua5.1", "luac5.1")
_REPOSITORY = Path(__file__).parents[2]
# The same users, hosts and devices inside as outside, and the folders that tests write to.
_SHARED = (
    "/proc", "/sys", "/dev", "/tmp", "/etc/passwd", "/etc/group", "/etc/hosts",
    "/etc/resolv.conf", str(_REPOSITORY),
)  # fmt: skip
_ENTER = """
set -e
root=$1
shift
for each; do
    [ -e "$each" ] || continue
    [ "$each" -ef "$root$each" ] && continue
    if [ -d "$each" ]; then
        mkdir -p "$root$each"
    else
        [ -e "$root$each" ] || : >"$root$each"
    fi
    case $each in
        /proc | /sys | /dev) mount --rbind "$each" "$root$each" ;;
        *) mount --bind "$each" "$root$each" ;;
    esac
done
echo ready
exec chroot "$root" cat
"""
# A working folder that is not there inside is no reason to run nothing.
_THERE = f'PATH={PATH}; export PATH; cd "$0" 2>/dev/null || cd /; unset OLDPWD; exec "$@"'


def slurm_root() -> Path | None:
    """The root folder that the environment names."""
    named = os.environ.get("FEEDRACK_SLURM_ROOT")
    return Path(named).resolve() if named else None


def obstacle() -> str | None:
    """Why there can be no Slurm here; None where there can."""
    root = slurm_root()
    missing = [name for name in (*_DAEMONS, *_CLIENTS) if _find(name, root) is None]
    if missing:
        return f"Slurm is not installed{f' in {root}' if root else ''}: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "Slurm's daemons want root"
    return None


class Place:
    """`open` before use, `close` after the last process has ended."""

    def __init__(self, folder: Path) -> None:
        self.root = slurm_root()
        self._folder = folder
        self._holder: subprocess.Popen[str] | None = None
        self.commands_folder = folder / "bin"

    def open(self) -> None:
        if self.root is not None:
            self._holder = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", _ENTER, "sh", self.root, *_SHARED, self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert self._holder.stdout is not None
            if self._holder.stdout.readline() != "ready\n":
                raise RuntimeError(f"cannot enter {self.root}: {self._holder.communicate()[1]}")
        self.commands_folder.mkdir(exist_ok=True)
        for name in (*_CLIENTS, *_COMPILERS):
            self._command(name)

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate()
            self._holder = None

    def wrap(self, argv: Sequence[str], *, user: str | None = None, cwd: Path) -> list[str]:
        """The words that run `argv` where Slurm is, as `user` where one is named."""
        words = list(argv)
        if user is not None:
            words = ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--init-groups",
                     *words]  # fmt: skip
        return [*self._inside, str(cwd), *words]

    @property
    def release(self) -> tuple[int, int, int]:
        """Year, month and patch of the release: (22, 5, 8)."""
        said = subprocess.check_output(
            self.wrap(["slurmctld", "-V"], cwd=self._folder), text=True, timeout=60
        )
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
        assert found is not None, said
        return int(found[1]), int(found[2]), int(found[3])

    @property
    def _inside(self) -> list[str]:
        """Words that need a working folder and a command behind them."""
        if self.root is None:
            return ["/bin/sh", "-c", _THERE]
        assert self._holder is not None
        return ["/usr/bin/nsenter", f"--target={self._holder.pid}", "--mount", "--root", "--wd",
                "--", "/bin/sh", "-c", _THERE]  # fmt: skip

    def _command(self, name: str) -> None:
        """A program of this name for those who look one up in PATH."""
        found = _find(name, self.root)
        if found is None:
            return
        command = self.commands_folder / name
        inside = " ".join(f"'{word}'" for word in self._inside)
        command.write_text(f'#!/bin/sh\nexec {inside} "$PWD" {name} "$@"\n')
        command.chmod(0o755)


def _find(name: str, root: Path | None) -> str | None:
    if root is None:
        return shutil.which(name, path=PATH)
    return next(
        (name for folder in PATH.split(":") if os.path.lexists(f"{root}{folder}/{name}")), None
    )


def _group(user: str) -> int:
    return int(subprocess.check_output(["id", "-g", user], text=True))
