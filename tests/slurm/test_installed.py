"""`feedrack-affinity install` on a controller's host: what it prints is put in place, and does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.configuration import LabNode
from tests.slurm.conftest import MakeSlurm
from tests.slurm.lab import SlurmLab

_PROGRAM = Path(sys.executable).with_name("feedrack-affinity")


class Host:
    """A lab's controller with everything of ours below the lab's folder."""

    def __init__(self, slurm: SlurmLab) -> None:
        self.slurm = slurm
        self.lib = slurm.folder / "lib"
        self.run_folder = slurm.folder / "affinity"
        self.config = slurm.folder / "affinity.toml"
        self.config.write_text(
            '[gateways]\nadmin_urls = ["http://127.0.0.1:1"]\ntoken_file = "/none"\n[folders]\n'
            + "".join(
                f'{name} = "{self.run_folder}/{name}"\n'
                for name in ("rankings", "requests", "staged", "state")
            )
        )

    def install(self, *words: str) -> tuple[int, Mapping[str, Any]]:
        done = subprocess.run(
            [_PROGRAM, "install", "--json", "--etc", self.slurm.etc, "--lib", self.lib, "--units",
             self.slurm.folder / "units", "--config", self.config, *words],
            # A compiler that finds the headers of this lab's release.
            env=os.environ | self.slurm.environment | {"TMPDIR": str(self.slurm.folder)},
            capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    def make_folders(self) -> None:
        for name in ("rankings", "requests", "staged"):
            (self.run_folder / name).mkdir(mode=0o700, parents=True)

    def obey(self, told: Mapping[str, Any]) -> None:
        """Does what an operator does who puts the lines where they belong."""
        for line in told["lines"]:
            if not line["needed"]:
                continue
            if line["file"] == "slurm.conf":
                key, _, value = line["text"].partition("=")
                if key == "NodeName":
                    name, _, features = value.partition(" Features=")
                    rack, _, *more = features.split(",")
                    self.slurm.nodes = [
                        LabNode(name, rack, features=tuple(more)) if each.name == name else each
                        for each in self.slurm.nodes
                    ]
                else:
                    self.slurm.settings[key] = value
            elif Path(line["file"]).name == "plugstack.conf":
                path = Path(line["file"])
                path.write_text(f"{path.read_text()}{line['text']}\n")
            else:
                path = self.slurm.etc / Path(line["file"]).name
                path.write_text(f"{path.read_text()}{line['text']}\n")


@pytest.fixture
def slurm(make_slurm: MakeSlurm) -> SlurmLab:
    return make_slurm(settings={"SchedulerParameters": "sched_interval=2,batch_sched_delay=0"})


def _missing(told: Mapping[str, Any]) -> set[str]:
    return {each["name"] for each in told["checks"] if each["state"] != "ok"}


def test_what_it_prints_makes_all_well(slurm: SlurmLab) -> None:
    slurm.start()
    host = Host(slurm)
    code, told = host.install("--write")
    assert code == 1
    assert _missing(told) - {"a feature of all nodes"} == {
        "JobSubmitPlugins", "PrologSlurmctld", "bf_interval", "folder rankings",
        "folder requests", "folder staged", "ignore_prefer_validation", "plugstack.conf",
    }  # fmt: skip
    # Its racks are all that the lab's nodes share.
    assert ("a feature of all nodes" in _missing(told)) is (slurm.release >= (24, 11, 0))
    host.make_folders()
    host.obey(told)
    slurm.restart_controller()

    code, told = host.install()
    assert _missing(told) == set()
    assert code == 0
    assert {each["action"] for each in told["files"]} == {"same", "stays"}

    job = slurm.sbatch("-w", "n2", "--dataset=s3://train/imagenet")
    slurm.wait(job, "COMPLETED")
    assert (host.run_folder / "requests" / job).read_text() == f"{job}\nn2\n"
    said = slurm.job(job)["AdminComment"]
    assert said.startswith("feedrack did=nothing")
    assert said.endswith("dataset=s3://train/imagenet")
    assert slurm.alive()


def test_jobs_start_whatever_becomes_of_the_requests(slurm: SlurmLab) -> None:
    slurm.start()
    host = Host(slurm)
    _, told = host.install("--write")
    host.make_folders()
    host.obey(told)
    slurm.restart_controller()
    requests = host.run_folder / "requests"
    for spoil in (
        lambda: requests.chmod(0o777),
        requests.rmdir,
        lambda: requests.symlink_to(host.run_folder / "rankings"),
        requests.unlink,
        lambda: os.mkfifo(requests),
        lambda: host.run_folder.rename(host.slurm.folder / "elsewhere"),
    ):
        spoil()
        job = slurm.sbatch()
        slurm.wait(job, "COMPLETED")
        assert slurm.job(job)["Restarts"] == "0"
    assert list((host.slurm.folder / "elsewhere" / "rankings").iterdir()) == []


def test_a_sites_own_script_and_prolog_go_on_and_call_ours(slurm: SlurmLab) -> None:
    (slurm.etc / "job_submit.lua").write_text(
        "function slurm_job_submit(job, parts, uid)\n"
        '   if job.name == "no" then return slurm.ERROR end\n'
        '   job.admin_comment = "site"\n   return slurm.SUCCESS\nend\n'
        "function slurm_job_modify() return slurm.SUCCESS end\n"
    )
    prolog = slurm.etc / "own-prolog"
    prolog.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >>{slurm.work}/seen\n")
    prolog.chmod(0o755)
    slurm.settings["PrologSlurmctld"] = str(prolog)
    slurm.start()
    host = Host(slurm)
    _, told = host.install("--write")
    assert [Path(each["path"]).name for each in told["files"]][2] == "feedrack.lua"
    assert {"job_submit.lua", "PrologSlurmctld"} <= _missing(told)
    host.make_folders()
    host.obey(told)
    slurm.restart_controller()
    code, told = host.install()
    assert _missing(told) == set()
    assert code == 0

    job = slurm.sbatch("-w", "n1", "--dataset=s3://train/imagenet")
    slurm.wait(job, "COMPLETED")
    assert slurm.job(job)["AdminComment"].startswith("site feedrack did=nothing")
    assert (slurm.work / "seen").read_text() == f"{job}\n"
    assert (host.run_folder / "requests" / job).exists()
    done = slurm.run("sbatch", "-J", "no", "--dataset=s3://train/a", check=False,
                     input="#!/bin/sh\n")  # fmt: skip
    assert done.returncode != 0


def test_nodes_that_lack_features_are_told_theirs(make_slurm: MakeSlurm) -> None:
    """The lab's nodes have both; here one has its rack alone, by another name."""
    slurm = make_slurm(nodes=[LabNode("n1", "rack1"), LabNode("n2", "rack1")])
    slurm.start()
    host = Host(slurm)
    _, told = host.install("--rack", "r7=n[1-2]")
    wanted = [line["text"] for line in told["lines"] if line["text"].startswith("NodeName")]
    assert wanted == [
        "NodeName=n1 Features=rack1,n1,r7",
        "NodeName=n2 Features=rack1,n2,r7",
    ]
    assert "nodes' racks" in _missing(told)


def test_without_a_controller_it_says_so_and_the_rest(slurm: SlurmLab) -> None:
    slurm.start()
    (slurm.folder / "run" / "slurmctld.pid").read_text()
    slurm.run("scontrol", "shutdown", "slurmctld")
    host = Host(slurm)
    code, told = host.install("--write")
    assert code == 1
    [controller] = [each for each in told["checks"] if each["name"] == "controller"]
    assert controller["state"] == "unknown"
    assert "JobSubmitPlugins=lua" in [line["text"] for line in told["lines"]]
    assert (host.lib / "feedrack_spank.so").exists()
