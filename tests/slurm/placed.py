"""A whole cluster of ours: Slurm, a gateway on each of its nodes, Redis, an origin, the plugin and
its daemon, all of them real.

    with Placed(folder) as placed:
        placed.put("s3://train/imagenet", node=3)
        job = placed.slurm.sbatch("--dataset=s3://train/imagenet", script="true")

Slurm's n1 is the gateways' n1; racks are called by the same names.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil
import tomli_w

from scheduler_plugin.dataset import file_name, parse_dataset
from tests.cluster.fleet import Fleet
from tests.node.process import ADMIN_TOKEN
from tests.slurm.configuration import FOUR_NODES, ONE_PARTITION, LabNode
from tests.slurm.lab import SlurmLab
from tests.waiting import wait_until

# What `feedrack-affinity install` proposes: a feature that all nodes have.
NODES = tuple(replace(each, features=("feedrack",)) for each in FOUR_NODES)
_CHUNK = 64 * 1024
_PROGRAM = Path(sys.executable).with_name("feedrack-affinity")


# A job's body: the load, until somebody ends it.
STAYS = "exec sleep 3600"
_STARTED = ("CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED")


@dataclass(frozen=True)
class Landed:
    """A job that has got its nodes. `said` is what we said of it, `seconds` how long it took."""

    id: str
    nodes: list[str]
    said: dict[str, str]
    seconds: float


class Placed:
    """`nodes` of Slurm's; those named in `gateways` (all, unless said) have a gateway each.
    `settings` are slurm.conf's, `affinity` is laid over the daemon's configuration, `parts` are
    words of `feedrack-affinity install`."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[LabNode] = NODES,
        gateways: Sequence[str] | None = None,
        partitions: Sequence[str] = ONE_PARTITION,
        settings: Mapping[str, str | None] | None = None,
        affinity: Mapping[str, Any] | None = None,
        fleet: Mapping[str, Any] | None = None,
        readers: Mapping[str, Sequence[str]] | None = None,
        parts: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.slurm = SlurmLab(nodes, partitions=partitions, settings=settings)
        racks = {each.name: each.rack for each in nodes}
        self.gateways = list(racks) if gateways is None else list(gateways)
        self.fleet = Fleet(
            folder / "fleet",
            racks=[racks[name] for name in self.gateways],
            origin="directory",
            settings={"cache": {"chunk_size": _CHUNK, "small_object_limit": 16 * 1024}},
            **(fleet or {}),
        )
        self.site = self.slurm.folder / "site"
        self.built = self.slurm.folder / "built"
        self.rankings = self.site / "rankings"
        self.requests = self.site / "requests"
        self.state = self.site / "state"
        self._affinity = dict(affinity or {})
        self._parts = tuple(parts)
        self._readers = {"demo": ["*"]} if readers is None else dict(readers)
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        try:
            self.fleet.start()
            self.slurm.open()
            self._install()
            self.slurm.start()
            self.start_daemon()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        self.end_daemon(signal.SIGTERM)
        self.kill_guards()
        self.slurm.stop()
        self.fleet.stop()

    # The daemon

    @property
    def config_path(self) -> Path:
        return self.site / "affinity.toml"

    @property
    def log(self) -> str:
        return (self.site / "daemon.log").read_text()

    def write_config(self, **over: Any) -> None:
        """The daemon's configuration, for its next start."""
        token = self.site / "token"
        token.touch(mode=0o600)
        token.write_text(ADMIN_TOKEN)
        config: dict[str, Any] = {
            "gateways": {
                "admin_urls": [node.admin_url for node in self.fleet.nodes],
                "token_file": str(token),
                "timeout_seconds": 3.0,
            },
            "slurm": {"commands_folder": str(self.slurm.commands_folder), "poll_seconds": 0.2},
            "folders": {
                name: str(self.site / name) for name in ("rankings", "requests", "staged", "state")
            },
            "ranking": {"refresh_seconds": 0.3, "valid_seconds": 30.0},
            "readers": self._readers,
            "nodes": {f"n{number}": name for number, name in enumerate(self.gateways, start=1)},
        }
        for section, values in {**self._affinity, **over}.items():
            config[section] = {**config.get(section, {}), **values}
        self.config_path.write_text(tomli_w.dumps(config))

    def start_daemon(self, **over: Any) -> None:
        """`over`: sections of the configuration, laid over what is there."""
        assert self._daemon is None
        self.write_config(**over)
        with (self.site / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [
                    str(_PROGRAM),
                    "run",
                    "--config",
                    str(self.config_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SLURM_CONF": str(self.slurm.etc / "slurm.conf")},
                start_new_session=True,
            )

    def end_daemon(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(how)
            # One that stands still would never hear of it.
            self._daemon.send_signal(signal.SIGCONT)
            self._daemon.wait(timeout=60)
            self._daemon = None

    def signal_daemon(self, how: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(how)

    @property
    def daemon_runs(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    @property
    def daemon(self) -> psutil.Process:
        assert self._daemon is not None
        return psutil.Process(self._daemon.pid)

    def ensure_daemon(self) -> None:
        """Whatever was done to it, it runs."""
        if self._daemon is None:
            self.start_daemon()
        else:
            self.signal_daemon(signal.SIGCONT)

    def guards(self) -> list[psutil.Process]:
        """What lets jobs go for a daemon that is gone: one, or none."""
        lock = str(self.state / "guard.lock")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if lock in process.cmdline():
                    found.append(process)
        return found

    def kill_guards(self) -> None:
        for process in self.guards():
            process.kill()
        wait_until(lambda: not self.guards(), "all guards end")

    # Data

    def put(self, dataset: str, *, objects: int = 4, size_bytes: int = 2 * _CHUNK) -> None:
        """Puts objects of a dataset into the origin, past all caches."""
        where = parse_dataset(dataset)
        for number in range(objects):
            path = self.fleet.origin_folder / where.bucket / where.prefix / f"{number:04}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size_bytes))

    def warm(self, dataset: str, node: str) -> None:
        """Reads a dataset through a node, which then holds it whole or in its rack."""
        number = self.gateways.index(node)
        where = parse_dataset(dataset)
        asked = {"dataset": where.url, "nodes": [f"n{number + 1}"]}
        id_ = self.fleet.ask(number, "/v1/prefetch", asked)["id"]
        wait_until(
            lambda: self.fleet.ask(number, f"/v1/prefetch/{id_}")["state"] == "done",
            "the prefetch ends",
        )

    def held(self, dataset: str) -> dict[str, int]:
        """Bytes by gateway, as these tell."""
        where = parse_dataset(dataset)
        said = self.fleet.ask(0, f"/v1/datasets?dataset={where.url}")
        return {each["id"]: each["bytes"] for each in said["nodes"] if each["bytes"]}

    def ranking(self, dataset: str) -> str:
        """The text of a dataset's file; "" where there is none."""
        name = file_name(parse_dataset(dataset))
        assert name is not None
        with contextlib.suppress(FileNotFoundError):
            return (self.rankings / name).read_text()
        return ""

    def await_first(self, dataset: str, place: str) -> None:
        """Waits until a dataset's ranking begins with a place."""
        first = re.compile(rf"^\[[^\n]*\n{re.escape(place)} ", re.MULTILINE)
        wait_until(
            lambda: first.search(self.ranking(dataset)),
            f"{place} comes first: {self.ranking(dataset)}\n{self.log[-2000:]}",
        )

    # Jobs

    def place(self, *arguments: str, script: str = "true", **how: Any) -> "Landed":
        """Submits a job, waits until it has its nodes, and tells where and why."""
        began = time.monotonic()
        id_ = self.slurm.sbatch(*arguments, script=script, **how)
        return self.landed(id_, began)

    def landed(self, id_: str, began: float | None = None) -> "Landed":
        """The same of a job that was submitted; `began`: when, monotonic."""
        job = self.slurm.wait(id_, *_STARTED)
        seconds = time.monotonic() - began if began is not None else 0.0
        return Landed(id_, self.slurm.nodes_of(id_), admin_comment(job), seconds)

    def looks(self) -> int:
        """How often Slurm has gone through its queue; backfill rests while nothing is new."""
        said = self.slurm.sdiag().partition("Main schedule statistics")[2]
        found = re.search(r"Total cycles: +(\d+)", said)
        assert found is not None, said
        return int(found[1])

    def stays_pending(self, id_: str) -> None:
        """Slurm goes through its queue some more times, and does not start the job."""
        seen = self.looks()
        wait_until(lambda: self.looks() >= seen + 2, "Slurm looks at its queue")
        job = self.slurm.job(id_)
        assert job["JobState"] == "PENDING", job

    # Parts

    def _install(self) -> None:
        """As an operator does, who then puts into Slurm's own files what is asked for."""
        for folder in (self.site, self.rankings, self.requests, self.state):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.write_config()
        # What users load lies where they can read it.
        self.built.mkdir(mode=0o755, exist_ok=True)
        done = subprocess.run(
            [
                str(_PROGRAM), "install", "--write", *self._parts,
                "--etc", str(self.slurm.etc), "--lib", str(self.built),
                "--units", str(self.site / "units"), "--config", str(self.config_path),
            ],
            # A compiler that finds the headers of this lab's release.
            env=os.environ | self.slurm.environment | {"TMPDIR": str(self.slurm.folder)},
            capture_output=True,
            text=True,
            timeout=110,
        )  # fmt: skip
        # 1: Slurm does not run yet, so much of what is needed is missing.
        assert done.returncode in (0, 1), done.stderr
        plugin, prolog = self.built / "feedrack_spank.so", self.built / "feedrack-prolog"
        assert plugin.exists(), done.stdout + done.stderr
        (self.slurm.etc / "plugstack.conf").write_text(f"optional {plugin}\n")
        self.slurm.settings |= {"JobSubmitPlugins": "lua", "PrologSlurmctld": str(prolog)}


def admin_comment(job: Mapping[str, str]) -> dict[str, str]:
    """What we said of a job."""
    words = job.get("AdminComment", "").split()
    return dict(word.split("=", 1) for word in words if "=" in word)
