"""A Slurm cluster of some nodes on loopback: up in about two seconds, gone without a trace.

    with SlurmLab() as slurm:
        job = slurm.sbatch("-N1", script="echo hello")
        slurm.wait(job, "COMPLETED")

Files that must be there from the start (`job_submit.lua`, `plugstack.conf`) go to `slurm.etc`
before `start`. Wants root, munge and Slurm, which are of this machine or of the root folder that
FEEDRACK_SLURM_ROOT names.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.slurm.configuration import (
    FOUR_NODES,
    ONE_PARTITION,
    LabNode,
    cgroup_conf,
    slurm_conf,
    topology_conf,
)
from tests.slurm.place import PATH, Place
from tests.slurm.ports import OwnPorts
from tests.slurm.sweep import sweep

_START_SECONDS = 30.0
_COMMAND_SECONDS = 60.0
_WAIT_SECONDS = 30.0
_REPOSITORY = Path(__file__).parents[2]
# What `scontrol show job` writes to the end of a line of its own, with any signs in it.
_WHOLE_LINES = frozenset(
    ("Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut")
)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=")


class SlurmLab:
    """`nodes` in racks; `partitions` are what follows PartitionName=; `settings` are lines of
    slurm.conf that add to ours, replace them, or with None remove them. All three may be changed
    before `start`, and for `reconfigure` and `restart_controller`."""

    def __init__(
        self,
        nodes: Sequence[LabNode] = FOUR_NODES,
        *,
        partitions: Sequence[str] = ONE_PARTITION,
        settings: Mapping[str, str | None] | None = None,
    ) -> None:
        self.nodes = list(nodes)
        self.partitions = list(partitions)
        self.settings = dict(settings or {})
        # Short: sockets are in it. Not below a test's own folder, which other users cannot enter.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.etc = self.folder / "etc"
        self.work = self.folder / "work"
        self.release = (0, 0, 0)
        self._place = Place(self.folder)
        self._ports = OwnPorts()
        self._started: list[subprocess.Popen[bytes]] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._controller_pid = 0
        self._blockers: dict[str, str] = {}
        self._prepare()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Life

    def start(self) -> Self:
        """Returns once all nodes are idle. RuntimeError with the logs' ends if they never are."""
        started = False
        try:
            self._start()
            started = True
        except (OSError, RuntimeError) as error:
            raise RuntimeError(f"Slurm did not start: {error}\n{self._logs()}") from error
        finally:
            if not started:
                self.stop()
        return self

    def open(self) -> None:
        """From now on `run` can run what needs no Slurm, such as a compiler; `start` opens too."""
        if self._keeper is not None:
            return
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm.sweep", str(self.folder)],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            # An interrupt at the terminal is for the tests; this one sees them end.
            start_new_session=True,
        )
        self._place.open()
        self.release = self._place.release

    def stop(self) -> None:
        """Ends all processes, those of jobs too, and removes the folder."""
        sweep(self.folder)
        for each in self._started:
            each.wait(timeout=10)
        self._started.clear()
        self._place.close()
        if self._keeper is not None:
            self._keeper.communicate(timeout=30)
            self._keeper = None
        self._ports.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def alive(self) -> bool:
        """The controller answers, and is the process that was started."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = self._read_controller_pid()
            os.kill(pid, 0)
            return pid == self._controller_pid and self._answers()
        return False

    def restart_controller(self) -> None:
        """Ends slurmctld as an operator does and starts it again, with slurm.conf written anew."""
        os.kill(self._read_controller_pid(), signal.SIGTERM)
        if self._controller is not None:
            self._controller.wait(timeout=30)
        self._until(lambda: not self._answers(), "the controller ends")
        self._write_configuration()
        self._start_controller()
        self._until(self._nodes_known, "the nodes have answered")

    def reconfigure(self) -> None:
        """Writes slurm.conf anew and has the daemons read it."""
        self._write_configuration()
        self.run("scontrol", "reconfigure")
        # Since 23.11 the daemons start anew, over which the nodes' states are lost for a moment.
        self._until(self._answers, "the controller answers")
        self._controller_pid = self._read_controller_pid()
        self._until(self._nodes_known, "the nodes have answered")

    # Commands

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use this Slurm, and no more."""
        return {
            "PATH": f"{self.commands_folder}:{PATH}",
            "SLURM_CONF": str(self.etc / "slurm.conf"),
            "HOME": "/root",
            "LANG": "C.UTF-8",
        }

    @property
    def commands_folder(self) -> Path:
        """Slurm's commands and a compiler for it, by name, for a PATH of who runs outside."""
        return self._place.commands_folder

    def wrap(
        self, argv: Sequence[str], *, user: str | None = None, cwd: Path | None = None
    ) -> list[str]:
        """The words that run `argv` where Slurm is."""
        return self._place.wrap(argv, user=user, cwd=cwd or Path.cwd())

    def run(
        self,
        *argv: str,
        check: bool = True,
        user: str | None = None,
        input: str | None = None,  # noqa: A002
        environ: Mapping[str, str] | None = None,
        seconds: float = _COMMAND_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the `work` folder. RuntimeError with what it said if it fails."""
        done = subprocess.run(
            self.wrap(argv, user=user, cwd=self.work),
            input=input if input is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=self.environment | dict(environ or {}),
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: {done.returncode}: {done.stderr}{done.stdout}")
        return done

    def run_raw(self, *argv: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:  # noqa: A002
        """The same for words and answers of any bytes; it never fails."""
        return subprocess.run(
            self.wrap(argv, cwd=self.work),
            input=input,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            env=self.environment,
        )

    def popen(
        self, *argv: str, user: str | None = None, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command that stays, such as salloc; `stop` ends it at the latest."""
        return subprocess.Popen(
            self.wrap(argv, user=user, cwd=self.work),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | dict(environ or {}),
        )

    def sbatch(
        self,
        *arguments: str,
        script: str = "true",
        user: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> str:
        """Submits a shell script and returns the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        done = self.run("sbatch", "--parsable", *arguments, user=user, input=text, environ=environ)
        return done.stdout.strip().split(";")[0]

    # Jobs

    def jobs(self, id_: str | None = None) -> list[dict[str, str]]:
        """Jobs as `scontrol show job` tells; of an array, a record for each task it knows apart."""
        said = self.run("scontrol", "show", "job", *([id_] if id_ else [])).stdout
        return [_record(text) for text in said.split("\n\n") if "JobId=" in text]

    def job(self, id_: str) -> dict[str, str]:
        return self.jobs(id_)[0]

    def state(self, id_: str) -> str:
        return self.job(id_)["JobState"]

    def wait(self, id_: str, *states: str, seconds: float = _WAIT_SECONDS) -> dict[str, str]:
        """Returns the job once it is in one of the states."""
        seen: dict[str, str] = {}

        def there() -> bool:
            seen.update(self.job(id_))
            return seen["JobState"] in states

        self._until(there, f"job {id_} is {' or '.join(states)}", seconds, lambda: str(seen))
        return seen

    def nodes_of(self, id_: str) -> list[str]:
        """Names of the nodes that the job runs on, or ran on."""
        said = self.job(id_).get("NodeList", "(null)")
        if said == "(null)":
            return []
        return self.run("scontrol", "show", "hostnames", said).stdout.split()

    def output(self, id_: str) -> str:
        """What a batch job has written."""
        return Path(self.job(id_)["StdOut"]).read_text(errors="replace")

    def cancel(self, *ids: str) -> None:
        self.run("scancel", *ids)

    def clear(self) -> None:
        """Ends all jobs and gives all nodes back."""
        ids = self.run("squeue", "-h", "-o", "%A").stdout.split()
        if ids:
            self.cancel(*ids)
        self._blockers.clear()
        for node, state in self._node_states().items():
            if "drain" in state or "down" in state:
                self.resume(node)
        self.wait_idle()

    def wait_idle(self, seconds: float = _WAIT_SECONDS) -> None:
        """Returns once no job is there and each node could take one."""

        def idle() -> bool:
            if self.run("squeue", "-h").stdout.strip():
                return False
            return set(self._node_states().values()) <= {"idle", "reserved", "planned"}

        self._until(idle, "all is idle", seconds, lambda: self.run("sinfo", "-N").stdout)

    # Nodes

    def drain(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    def resume(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def occupy(self, *nodes: str) -> None:
        """Fills nodes with a job each, and returns once these run."""
        for node in nodes:
            self._blockers[node] = self.sbatch(
                "-N1", "-w", node, "--exclusive", "-J", "blocker", script="exec sleep 3600"
            )
        for node in nodes:
            self.wait(self._blockers[node], "RUNNING")

    def free(self, *nodes: str) -> None:
        """Ends what `occupy` started on these nodes, and returns once it is gone."""
        ids = [self._blockers.pop(node) for node in nodes]
        self.cancel(*ids)
        for id_ in ids:
            self.wait(id_, "CANCELLED", "COMPLETED")

    # What the daemons say

    def log(self) -> str:
        """What the controller has logged."""
        return (self.folder / "log" / "slurmctld.log").read_text(errors="replace")

    def sdiag(self) -> str:
        return self.run("sdiag").stdout

    def _prepare(self) -> None:
        self.folder.chmod(0o755)
        for name in ("etc", "run", "log", "state", "spool", "work"):
            (self.folder / name).mkdir()
        self.work.chmod(0o1777)
        (self.etc / "plugstack.conf").touch()

    def _start(self) -> None:
        self.open()
        self._write_configuration()
        self._start_munge()
        self._start_controller()
        for node in self.nodes:
            self._daemon(f"slurmd.{node.name}", "slurmd", "-D", "-N", node.name)
        self._until_up(lambda: set(self._node_states().values()) == {"idle"}, "all nodes are idle")

    def _write_configuration(self) -> None:
        text = slurm_conf(
            self.folder,
            self.release,
            self._ports.first,
            self.nodes,
            self.partitions,
            self.settings,
        )
        (self.etc / "slurm.conf").write_text(text)
        (self.etc / "topology.conf").write_text(topology_conf(self.nodes))
        (self.etc / "cgroup.conf").write_text(cgroup_conf(self.release))

    def _start_munge(self) -> None:
        keys = self.folder / "key"
        keys.mkdir(mode=0o700)
        key = keys / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        socket = self.folder / "run" / "munge.sock"
        self._daemon(
            "munged",
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={key}",
            f"--socket={socket}",
            f"--pid-file={self.folder}/run/munged.pid",
            f"--seed-file={keys}/munged.seed",
        )
        self._until_up(socket.exists, "munged listens")

    def _start_controller(self) -> None:
        self._controller = self._daemon("slurmctld", "slurmctld", "-D")
        # Nodes that come before it is up can stay unknown for a quarter of a minute.
        self._until_up(self._answers, "the controller answers")
        self._controller_pid = self._read_controller_pid()

    def _daemon(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                self.wrap(argv, cwd=self.folder),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
            )
        self._started.append(process)
        return process

    def _read_controller_pid(self) -> int:
        return int((self.folder / "run" / "slurmctld.pid").read_text())

    def _answers(self) -> bool:
        done = self.run("scontrol", "ping", check=False)
        return " is UP" in done.stdout

    def _nodes_known(self) -> bool:
        states = self._node_states().values()
        return bool(states) and not any("unknown" in each or "*" in each for each in states)

    def _node_states(self) -> dict[str, str]:
        """State by node; "idle" for one that is as it should be, "idle*" for one not heard of."""
        said = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout
        return dict(line.split() for line in said.splitlines())

    def _until_up(self, condition: Callable[[], bool], what: str) -> None:
        """Returns once the condition holds, or fails as soon as the daemon started last ends."""

        def holds() -> bool:
            if self._started[-1].poll() is not None:
                raise RuntimeError(f"{self._started[-1].args!r} has ended")
            return condition()

        self._until(holds, what, _START_SECONDS)

    def _until(
        self,
        condition: Callable[[], bool],
        what: str,
        seconds: float = _WAIT_SECONDS,
        more: Callable[[], str] = lambda: "",
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it never came to be that {what} {more()}".rstrip())
            time.sleep(0.03)

    def _logs(self) -> str:
        folder = self.folder / "log"
        return "\n".join(
            f"{each.name}: {each.read_text(errors='replace')[-1500:]}"
            for each in sorted(folder.iterdir())
            if each.stat().st_size
        )


def _record(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, rest = line.strip().partition("=")
        if separator and key in _WHOLE_LINES:
            # Some releases write a space behind it.
            found[key] = rest.rstrip()
            continue
        pieces = _FIELD.split(line)
        found.update(zip(pieces[1::2], (each.strip() for each in pieces[2::2]), strict=True))
    return found
