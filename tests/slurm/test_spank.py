"""`--dataset` and `--dataset-wait` in Slurm's own commands."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler_plugin.dataset import BadHint, parse_hint
from tests.slurm.lab import SlurmLab

_SOURCE = Path(__file__).parents[2] / "scheduler_plugin" / "site" / "feedrack_spank.c"
# Says in AdminComment what a job_submit.lua gets to see.
_SCRIPT = """\
function slurm_job_submit(job, parts, uid)
   local found = {}
   for _, entry in pairs(job.spank_job_env or {}) do found[#found + 1] = entry end
   table.sort(found)
   job.admin_comment = table.concat(found, " ")
   return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
"""
_SHOW = "env | grep -a ^FEEDRACK_ | sort"


def _build(slurm: SlurmLab) -> Path:
    built = slurm.etc / "feedrack_spank.so"
    slurm.run("gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o",
              str(built), str(_SOURCE))  # fmt: skip
    return built


@pytest.fixture(scope="module")
def module_slurm(slurm_is_there: None) -> Iterator[SlurmLab]:
    lab = SlurmLab()
    try:
        (lab.etc / "job_submit.lua").write_text(_SCRIPT)
        (lab.etc / "plugstack.conf").write_text(f"optional {lab.etc}/feedrack_spank.so\n")
        lab.start()
        _build(lab)
        yield lab
    finally:
        lab.stop()


def _seen(slurm: SlurmLab, job: str) -> str:
    return slurm.job(job)["AdminComment"]


_BOTH = (
    "FEEDRACK_DATASET=s3://train/imagenet FEEDRACK_DATASET_WAIT=5 "
    "_SLURM_SPANK_OPTION_feedrack_dataset=s3://train/imagenet "
    "_SLURM_SPANK_OPTION_feedrack_dataset_wait=5"
)


def test_sbatch_hands_them_to_job_submit_and_the_job(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--dataset=s3://train/imagenet", "--dataset-wait", "5", script=_SHOW)
    assert _seen(slurm, job) == _BOTH
    slurm.wait(job, "COMPLETED")
    assert slurm.output(job) == "FEEDRACK_DATASET=s3://train/imagenet\n"


def test_a_script_may_say_them(slurm: SlurmLab) -> None:
    job = slurm.sbatch(
        script="#!/bin/sh\n#SBATCH --dataset=s3://train/imagenet --dataset-wait=5\ntrue\n"
    )
    assert _seen(slurm, job) == _BOTH


def test_the_command_line_wins_over_the_script(slurm: SlurmLab) -> None:
    job = slurm.sbatch(
        "--dataset=s3://train/coco", script="#!/bin/sh\n#SBATCH --dataset=s3://train/old\ntrue\n"
    )
    assert "_dataset=s3://train/coco" in _seen(slurm, job)
    assert "old" not in _seen(slurm, job)


def test_a_job_that_brings_no_environment_is_told_too(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--export=NONE", "--dataset=s3://train/imagenet", script=_SHOW)
    slurm.wait(job, "COMPLETED")
    assert slurm.output(job) == "FEEDRACK_DATASET=s3://train/imagenet\n"


def test_srun_and_salloc_have_them(slurm: SlurmLab) -> None:
    for words in (["srun"], ["salloc", "-Q"]):
        hint = ["--dataset=s3://train/a,s3://train/b"]
        done = slurm.run(*words, *hint, "sh", "-c", f"{_SHOW}; echo $SLURM_JOB_ID")
        named, job = done.stdout.split()
        assert named == "FEEDRACK_DATASET=s3://train/a,s3://train/b"
        assert "_OPTION_feedrack_dataset=s3://train/a,s3://train/b" in _seen(slurm, job)


def test_other_users_have_them(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--dataset=s3://train/imagenet", user="nobody")
    assert "_OPTION_feedrack_dataset=s3://train/imagenet" in _seen(slurm, job)


def test_a_job_without_them_is_as_it_was(slurm: SlurmLab) -> None:
    job = slurm.sbatch(script=_SHOW)
    assert slurm.job(job).get("AdminComment", "") == ""
    slurm.wait(job, "COMPLETED")
    assert slurm.output(job) == ""


def test_the_commands_say_what_the_options_are(slurm: SlurmLab) -> None:
    for command in ("sbatch", "srun", "salloc"):
        told = slurm.run(command, "--help").stdout
        assert "--dataset=s3://bucket/prefix" in told
        assert "--dataset-wait=minutes" in told


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        ("", "names no dataset"),
        ("train/imagenet", "s3://bucket/prefix"),
        ("s3://train/a,", "with a comma between"),
        ("s3://train/a,,s3://train/b", "with a comma between"),
        ("s3://", "no bucket's name"),
        ("s3:///a", "no bucket's name"),
        ("s3://Train/a", "no bucket's name"),
        ("s3://tr/a", "no bucket's name"),
        ("s3://train-/a", "no bucket's name"),
        ("s3://train_1", "no bucket's name"),
        (f"s3://{'a' * 64}", "no bucket's name"),
        ("s3://train/a b", "a space"),
        ("s3://train/a\tb", "a control character"),
        ("s3://train/\x1b[2J", "a control character"),
        ("s3://train/a'b", "a quote"),
        ('s3://train/a"b', "a quote"),
        ("s3://train/a\\b", "a backslash"),
        (f"s3://train/{'a' * 502}", "512 bytes"),
        (f"s3://train/{'a' * 100_000}", "512 bytes"),
        (",".join(f"s3://train/{number}" for number in range(9)), "more than 8"),
    ],
)
def test_a_hint_that_is_none_is_refused_and_says_why(slurm: SlurmLab, hint: str, says: str) -> None:
    done = slurm.run("sbatch", f"--dataset={hint}", check=False, input="#!/bin/sh\ntrue\n")
    assert done.returncode != 0
    assert "feedrack: --dataset: " in done.stderr
    assert says in done.stderr.splitlines()[0]
    assert slurm.run("squeue", "-h").stdout == ""


@pytest.mark.parametrize(
    "minutes",
    ["", "0", "00", "100001", "0100000", "-1", "+1", "1.5", "1h", " 1", "99999999999999999"],
)
def test_a_wait_that_is_none_is_refused(slurm: SlurmLab, minutes: str) -> None:
    done = slurm.run("srun", f"--dataset-wait={minutes}", "true", check=False)
    assert done.returncode != 0
    assert "from 1 to 100000" in done.stderr


@pytest.mark.parametrize("minutes", ["1", "007", "100000"])
def test_a_wait_is_handed_on_as_it_was_typed(slurm: SlurmLab, minutes: str) -> None:
    job = slurm.sbatch("--hold", f"--dataset-wait={minutes}")
    assert f"_OPTION_feedrack_dataset_wait={minutes}" in _seen(slurm, job)


_NAMES = st.one_of(
    st.binary(max_size=30).map(lambda value: value.replace(b"\0", b"")),
    st.from_regex(rb"s3://[a-z0-9.A-]{1,8}(/[ -~\x80-\xff]{0,12})?", fullmatch=True),
)
_HINTS = st.lists(_NAMES, min_size=1, max_size=10).map(b",".join)


@example(b"s3://" + b"a" * 63)
@example(b"s3://train/" + b"\xff" * 989)
@example(b"s3://train//")
@example(b"s3://a.-")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_HINTS)
def test_what_is_taken_is_what_the_daemon_and_the_controller_can_read(
    slurm: SlurmLab, hint: bytes
) -> None:
    text = os.fsdecode(hint)
    try:
        parse_hint(text)
        expected = text.count(",") < 8
    except BadHint:
        expected = False
    # Asks when such a job would start, and leaves none behind.
    done = slurm.run("sbatch", "--test-only", f"--dataset={text}", check=False,
                     input="#!/bin/sh\ntrue\n")  # fmt: skip
    assert (done.returncode == 0) is expected, done.stderr


# Where the plugin is not as it should be


def test_hosts_without_it_run_jobs_that_have_a_hint(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--hold", "--dataset=s3://train/imagenet", script=f"echo ran; {_SHOW}")
    plugin = slurm.etc / "feedrack_spank.so"
    try:
        plugin.unlink()
        slurm.run("scontrol", "release", job)
        slurm.wait(job, "COMPLETED")
        assert slurm.output(job).startswith("ran\n")
        other = slurm.sbatch()
        slurm.wait(other, "COMPLETED")
        done = slurm.run("sbatch", "--dataset=s3://train/a", check=False, input="#!/bin/sh\n")
        assert "unrecognized option" in done.stderr
    finally:
        _build(slurm)


def test_a_file_that_is_no_plugin_is_in_no_jobs_way(slurm: SlurmLab) -> None:
    plugin = slurm.etc / "feedrack_spank.so"
    try:
        plugin.unlink()
        plugin.write_bytes(b"\x7fELF no plugin")
        job = slurm.sbatch()
        slurm.wait(job, "COMPLETED")
    finally:
        plugin.unlink()
        _build(slurm)


def test_nodes_that_do_not_know_the_plugin_run_jobs_that_have_a_hint(slurm: SlurmLab) -> None:
    job = slurm.sbatch("--hold", "--dataset=s3://train/imagenet")
    stack = slurm.etc / "plugstack.conf"
    line = stack.read_text()
    try:
        stack.write_text("")
        slurm.run("scontrol", "release", job)
        slurm.wait(job, "COMPLETED")
    finally:
        stack.write_text(line)


def test_it_needs_nothing_that_a_command_does_not_have(slurm: SlurmLab) -> None:
    """Nothing but libc and Slurm's own calls, and none that opens or allocates."""
    built = slurm.etc / "feedrack_spank.so"
    told = subprocess.run(["nm", "-D", "--undefined-only", built], capture_output=True, text=True)
    used = {line.split()[-1].partition("@")[0] for line in told.stdout.splitlines()}
    assert used <= {
        "memcpy", "setenv", "strchr", "strlen", "strncmp", "strnlen", "strspn", "slurm_debug",
        "slurm_error", "spank_context", "spank_getenv", "spank_job_control_setenv",
        "spank_option_register", "spank_setenv", "__stack_chk_fail", "__cxa_finalize",
        "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable",
    }  # fmt: skip
