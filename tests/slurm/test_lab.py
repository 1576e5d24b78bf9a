"""The lab itself: it is a Slurm, several go side by side, and nothing of one is left."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.slurm.configuration import LabNode
from tests.slurm.conftest import MakeSlurm
from tests.slurm.lab import SlurmLab
from tests.slurm.place import slurm_root
from tests.waiting import wait_until

_REPOSITORY = Path(__file__).parents[2]


def test_a_job_runs_and_its_output_is_there(slurm: SlurmLab) -> None:
    job = slurm.sbatch("-N2", "--comment", "a=b c=d", script="srun hostname; echo $SLURM_NNODES")
    done = slurm.wait(job, "COMPLETED")
    assert done["Comment"] == "a=b c=d"
    assert done["NumNodes"] == "2"
    assert slurm.output(job).splitlines()[-1] == "2"
    assert len(slurm.nodes_of(job)) == 2


def test_nodes_and_racks_are_features(slurm: SlurmLab) -> None:
    job = slurm.sbatch("-C", "rack2")
    slurm.wait(job, "COMPLETED")
    assert slurm.nodes_of(job)[0] in ("n3", "n4")
    job = slurm.sbatch("-C", "n2")
    slurm.wait(job, "COMPLETED")
    assert slurm.nodes_of(job) == ["n2"]


def test_drained_and_occupied_nodes_take_no_job(slurm: SlurmLab) -> None:
    slurm.drain("n1")
    slurm.occupy("n2", "n3")
    job = slurm.sbatch(script="exec sleep 3600")
    slurm.wait(job, "RUNNING")
    assert slurm.nodes_of(job) == ["n4"]
    waiting = slurm.sbatch("--exclusive")
    slurm.free("n3")
    slurm.wait(waiting, "COMPLETED")
    assert slurm.nodes_of(waiting) == ["n3"]


def test_another_user_submits_a_job(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--export=NONE", script="id -un", user="nobody")
    slurm.wait(job, "COMPLETED")
    assert slurm.output(job) == "nobody\n"
    refused = slurm.run(
        "scontrol", "update", "NodeName=n1", "State=DRAIN", user="nobody", check=False
    )
    assert refused.returncode != 0


def test_the_controller_is_started_anew_and_keeps_its_jobs(slurm: SlurmLab) -> None:
    slurm.occupy("n1")
    assert slurm.alive()
    slurm.restart_controller()
    assert slurm.alive()
    assert [job["NodeList"] for job in slurm.jobs() if job["JobState"] == "RUNNING"] == ["n1"]
    slurm.reconfigure()
    assert slurm.alive()
    job = slurm.sbatch("-w", "n2")
    slurm.wait(job, "COMPLETED")


def test_commands_are_found_by_those_who_run_outside(slurm: SlurmLab, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%N"],
        env=slurm.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["n1", "n2", "n3", "n4"]
    assert done.stderr == ""
    (tmp_path / "hello.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(
        ["gcc", "-o", "hello", "hello.c"], env=slurm.environment, cwd=tmp_path, check=True
    )
    assert (tmp_path / "hello").exists()


def test_settings_nodes_and_a_submit_script_are_what_is_asked_for(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(
        nodes=[LabNode("a", "r1", cpus=4, features=("gpu",)), LabNode("b", "r2")],
        partitions=["main Nodes=ALL Default=YES State=UP", "small Nodes=b State=UP"],
        settings={"JobRequeue": "0"},
    )
    (slurm.etc / "job_submit.lua").write_text(
        """
        function slurm_job_submit(job, partitions, user)
            job.admin_comment = "seen"
            return slurm.SUCCESS
        end
        function slurm_job_modify(job, record, partitions, user)
            return slurm.SUCCESS
        end
        """
    )
    slurm.start()
    job = slurm.sbatch("-C", "gpu", "-n4")
    done = slurm.wait(job, "COMPLETED")
    assert (done["AdminComment"], done["Requeue"]) == ("seen", "0")
    assert slurm.nodes_of(job) == ["a"]
    job = slurm.sbatch("-p", "small")
    slurm.wait(job, "COMPLETED")
    assert slurm.nodes_of(job) == ["b"]


def test_nothing_is_mounted_where_others_see_it(slurm: SlurmLab) -> None:
    """So whoever deletes a root folder deletes what is in it and no more."""
    mounts = Path("/proc/self/mountinfo").read_text()
    root = slurm_root()
    assert str(slurm.folder) not in mounts
    assert root is None or f"{root}/" not in mounts


def test_labs_run_side_by_side_and_nothing_is_left_of_them(make_slurm: MakeSlurm) -> None:
    first, second = make_slurm().start(), make_slurm().start()
    first.occupy("n1", "n2", "n3", "n4")
    job = second.sbatch(script="exec sleep 3600")
    second.wait(job, "RUNNING")
    second.stop()
    assert _of(second.folder) == []
    assert not second.folder.exists()
    assert first.alive()
    first.stop()
    assert _of(first.folder) == []


def test_a_slurm_that_cannot_start_says_why_and_leaves_nothing(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(settings={"JobSubmitPlugins": "none_such"})
    with pytest.raises(RuntimeError, match="none_such"):
        slurm.start()
    assert _of(slurm.folder) == []
    assert not slurm.folder.exists()


def test_nothing_outlives_tests_that_are_killed(slurm_is_there: None) -> None:
    """Not even a job that gives its children another environment."""
    script = (
        "import sys\n"
        "from tests.slurm.lab import SlurmLab\n"
        "slurm = SlurmLab().start()\n"
        "job = slurm.sbatch(script='env -i sleep 3600; true')\n"
        "slurm.wait(job, 'RUNNING')\n"
        "print(slurm.folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        folder = Path(tests.stdout.readline().strip())
        assert _of(folder) != []
        tests.kill()
    wait_until(lambda: not folder.exists(), "its folder is gone")
    # Who swept it away goes last.
    wait_until(lambda: not _of(folder), "nothing of it is left")


def _of(folder: Path) -> list[str]:
    """Processes whose command or folder is of a lab, without this one."""
    found: list[str] = []
    for each in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = " ".join(each.info["cmdline"] or ())
        inside = folder.name in words or folder.name in (each.info["cwd"] or "")
        if inside and each.pid != os.getpid() and each.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found
