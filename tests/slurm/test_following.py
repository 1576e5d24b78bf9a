"""A job follows its data: onto the node that holds them, else into the rack, else anywhere; and
what it was told to do otherwise comes first."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.placed import STAYS, Placed, admin_comment
from tests.waiting import wait_until

IMAGES = "s3://train/images"
LABELS = "s3://train/labels"
HINT = f"--dataset={IMAGES}"
# Half of what Slurm itself lets pass between two looks of its backfill, unless told otherwise.
SOON_SECONDS = 15.0

PARTITIONS = (
    "main Nodes=ALL Default=YES MaxTime=60 State=UP",
    "left Nodes=n[1-2] MaxTime=60 State=UP",
    "right Nodes=n[3-4] MaxTime=60 State=UP",
    "middle Nodes=n[2-3] MaxTime=60 State=UP",
)


@pytest.fixture(scope="module")
def cluster(slurm_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    """n4 holds the images, n1 the labels. Nothing is warmed for jobs: it stays like this."""
    with Placed(
        tmp_path_factory.mktemp("placed"),
        partitions=PARTITIONS,
        gateways=("n4", "n1"),
        affinity={"warming": {"enabled": False}},
    ) as placed:
        placed.put(IMAGES)
        placed.put(LABELS, objects=16)
        placed.warm(IMAGES, "n4")
        placed.warm(LABELS, "n1")
        yield placed


@pytest.fixture
def following(placed: Placed) -> Placed:
    """Idle, and ranked as such: n4 is the first of the images' places, n1 of the labels'."""
    placed.await_first(IMAGES, "n4")
    placed.await_first(LABELS, "n1")
    return placed


# Node, rack, anywhere


def test_a_job_starts_on_the_node_that_holds_its_data(following: Placed) -> None:
    job = following.place(HINT)
    assert job.nodes == ["n4"]
    assert job.said["did"] == "preferred"
    assert job.said["dataset"] == IMAGES
    assert job.said["prefer"].startswith("[n4|")
    assert job.said["prefer"].endswith("|feedrack]")


def test_a_job_of_another_dataset_starts_where_that_is(following: Placed) -> None:
    assert following.place(f"--dataset={LABELS}").nodes == ["n1"]


def test_a_job_that_names_no_dataset_is_left_as_it_is(following: Placed) -> None:
    job = following.place()
    assert job.said == {}
    assert following.slurm.job(job.id)["Features"] == "(null)"


def test_a_dataset_that_nobody_holds_changes_nothing(following: Placed) -> None:
    job = following.place("--dataset=s3://train/unheard-of")
    assert job.said == {
        "did": "nothing",
        "why": "no-ranking",
        "dataset": "s3://train/unheard-of",
    }
    assert following.slurm.job(job.id)["Features"] == "(null)"


def test_with_the_holder_busy_a_job_starts_in_its_rack(following: Placed) -> None:
    following.slurm.occupy("n4")
    job = following.place(HINT)
    assert job.nodes == ["n3"]
    assert job.seconds < SOON_SECONDS


def test_with_the_rack_busy_a_job_starts_anywhere_without_waiting(following: Placed) -> None:
    following.slurm.occupy("n3", "n4")
    job = following.place(HINT)
    assert job.said["did"] == "preferred"
    assert job.nodes[0] in ("n1", "n2")
    assert job.seconds < SOON_SECONDS


def test_with_the_holder_drained_a_job_starts_in_its_rack(following: Placed) -> None:
    following.slurm.drain("n4")
    job = following.place(HINT)
    assert job.nodes == ["n3"]
    assert job.seconds < SOON_SECONDS


def test_with_the_rack_drained_a_job_starts_anywhere_without_waiting(following: Placed) -> None:
    following.slurm.drain("n3")
    following.slurm.drain("n4")
    before = following.place(HINT)
    # And so it is once the ranking knows of it.
    wait_until(lambda: "\nrack2 " not in following.ranking(IMAGES), "rack2 is ranked no longer")
    after = following.place(HINT)
    for job in (before, after):
        assert job.nodes[0] in ("n1", "n2")
        assert job.seconds < SOON_SECONDS


def test_jobs_fill_the_holder_then_its_rack_then_what_is_left(following: Placed) -> None:
    landed = [following.place(HINT, "--exclusive", script=STAYS).nodes[0] for _ in range(4)]
    assert set(landed[:2]) == {"n4", "n3"}
    assert set(landed[2:]) == {"n1", "n2"}


# How it is said


@pytest.mark.parametrize(
    ("arguments", "script"),
    [
        ((f"--dataset={IMAGES}/",), "true"),
        (("--comment", f"dataset={IMAGES}"), "true"),
        (("--comment", f"mine; dataset={IMAGES}/ and=more"), "true"),
        ((), f"#!/bin/sh\n#DATASET {IMAGES}\ntrue\n"),
        ((), f"#!/bin/sh\n#SBATCH --dataset={IMAGES}\ntrue\n"),
        ((), f"#!/bin/sh\n#SBATCH --comment=dataset={IMAGES}\ntrue\n"),
    ],
    ids=["slash", "comment", "in-comment", "line", "sbatch-line", "sbatch-comment"],
)
def test_each_way_of_naming_a_dataset_does_the_same(
    following: Placed, arguments: tuple[str, ...], script: str
) -> None:
    job = following.place(*arguments, script=script)
    assert job.nodes == ["n4"]
    assert (job.said["did"], job.said["dataset"]) == ("preferred", IMAGES)


def test_the_option_goes_before_the_comment(following: Placed) -> None:
    job = following.place(HINT, "--comment", f"dataset={LABELS}")
    assert job.nodes == ["n4"]


def test_srun_follows_and_knows_what_it_follows(following: Placed) -> None:
    done = following.slurm.run("srun", HINT, "sh", "-c", "echo $SLURMD_NODENAME $FEEDRACK_DATASET")
    assert done.stdout == f"n4 {IMAGES}\n"


def test_salloc_follows(following: Placed) -> None:
    done = following.slurm.run("salloc", HINT, "sh", "-c", "echo $SLURM_JOB_NODELIST")
    assert done.stdout == "n4\n"


def test_what_cannot_be_a_dataset_is_refused_where_it_is_typed(following: Placed) -> None:
    done = following.slurm.run("sbatch", "--dataset=train/images", "--wrap", "true", check=False)
    assert done.returncode != 0
    assert "s3://bucket/prefix" in done.stderr


def test_what_cannot_be_a_dataset_is_no_hindrance_in_a_comment(following: Placed) -> None:
    job = following.place("--comment", "dataset=mnist")
    assert job.said == {"did": "nothing", "why": "bad-hint"}


# What was asked for comes first


def test_a_constraint_is_kept(following: Placed) -> None:
    job = following.place(HINT, "-C", "rack1")
    assert job.nodes[0] in ("n1", "n2")
    assert job.said["prefer"].startswith("rack1&[n4|")
    assert following.place(HINT, "-C", "rack2").nodes == ["n4"]
    assert following.place(HINT, "-C", "rack1&n2").nodes == ["n2"]


def test_a_job_waits_for_its_constraint_rather_than_be_placed_against_it(
    following: Placed,
) -> None:
    following.slurm.occupy("n1", "n2")
    job = following.slurm.sbatch(HINT, "-C", "rack1")
    following.stays_pending(job)
    following.slurm.free("n2")
    assert following.landed(job).nodes == ["n2"]


@pytest.mark.parametrize(
    ("arguments", "nodes", "why"),
    [
        (("-w", "n2"), {"n2"}, "own-nodes"),
        (("--prefer=n2",), {"n2"}, "own-preference"),
        (("-C", "n1|n2"), {"n1", "n2"}, "complex-constraint"),
        (("-C", "[rack1|n1]"), {"n1", "n2"}, "complex-constraint"),
        (("-N2", "-C", "[n1*1&n3*1]"), {"n1", "n3"}, "complex-constraint"),
    ],
    ids=["nodes", "preference", "or", "matching-or", "counts"],
)
def test_what_says_more_than_we_can_keep_passes_untouched(
    following: Placed, arguments: tuple[str, ...], nodes: set[str], why: str
) -> None:
    job = following.place(HINT, *arguments)
    assert set(job.nodes) <= nodes
    assert job.said == {"did": "nothing", "why": why, "dataset": IMAGES}


def test_excluded_nodes_stay_excluded(following: Placed) -> None:
    assert following.place(HINT, "-x", "n4").nodes == ["n3"]
    job = following.place(HINT, "-x", "n3,n4")
    assert job.nodes[0] in ("n1", "n2")
    assert job.seconds < SOON_SECONDS


def test_places_are_those_of_the_partition(following: Placed) -> None:
    assert following.place(HINT, "-p", "right").nodes == ["n4"]
    left = following.place(HINT, "-p", "left")
    assert left.nodes[0] in ("n1", "n2")
    assert not {"n3", "n4", "rack2"} & set(left.said.get("prefer", "").strip("[]").split("|"))
    assert left.seconds < SOON_SECONDS


def test_a_job_of_two_partitions_starts_in_one_of_them(following: Placed) -> None:
    job = following.place(HINT, "-p", "left,right")
    assert job.said["did"] == "preferred"
    assert job.seconds < SOON_SECONDS


# More than one node


def test_a_job_of_two_nodes_starts_in_the_rack(following: Placed) -> None:
    job = following.place(HINT, "-N2")
    assert job.nodes == ["n3", "n4"]
    assert job.said["prefer"].startswith("[rack2|")
    assert "n4" not in job.said["prefer"]


def test_tasks_that_want_two_nodes_start_in_the_rack(following: Placed) -> None:
    assert following.place(HINT, "-n3").nodes == ["n3", "n4"]


def test_a_job_of_two_nodes_goes_on_where_the_rack_is_busy(following: Placed) -> None:
    following.slurm.occupy("n4")
    job = following.place(HINT, "-N2", "--exclusive")
    assert "n4" not in job.nodes
    assert job.seconds < SOON_SECONDS


def test_a_job_of_two_nodes_goes_across_racks_where_each_is_busy(following: Placed) -> None:
    following.slurm.occupy("n1", "n4")
    job = following.place(HINT, "-N2", "--exclusive")
    assert job.nodes == ["n2", "n3"]
    assert job.seconds < SOON_SECONDS


@pytest.mark.parametrize(
    ("arguments", "nodes", "why"),
    [
        (("-N3",), 3, "no-place"),
        (("-N4",), 4, "no-place"),
        (("-n5",), 3, "no-place"),
        (("-N2", "-p", "middle"), 2, "no-place"),
        (("-N2", "-x", "n4"), 2, "several-nodes-of-some"),
        (("-N2", "-x", "n2,n4"), 2, "several-nodes-of-some"),
        (("-N2-3",), 3, "range-of-nodes"),
        (("-n4", "-x", "n3"), 2, "several-nodes-of-some"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else str(each),
)
def test_what_no_rack_can_hold_starts_as_if_we_were_not_there(
    following: Placed, arguments: tuple[str, ...], nodes: int, why: str
) -> None:
    job = following.place(HINT, *arguments)
    assert job.said == {"did": "nothing", "why": why, "dataset": IMAGES}
    record = following.slurm.job(job.id)
    # What a job that has started preferred stands in either, depending on the release.
    assert (record["Features"], record.get("Prefer", "(null)")) == ("(null)", "(null)")
    assert len(job.nodes) == nodes
    assert job.seconds < SOON_SECONDS


def test_tasks_of_an_array_follow_where_the_release_can_do_it(following: Placed) -> None:
    id_ = following.slurm.sbatch(HINT, "--array=1-3", "--exclusive", script=STAYS)
    tasks = [following.landed(f"{id_}_{number}") for number in (1, 2, 3)]
    nodes = [task.nodes[0] for task in tasks]
    assert len(set(nodes)) == 3
    if following.slurm.release < (22, 5, 9):
        assert {task.said["why"] for task in tasks} == {"array-on-this-release"}
    else:
        assert {task.said["did"] for task in tasks} == {"preferred"}, tasks
        assert {"n3", "n4"} < set(nodes)


def test_a_job_of_unlike_parts_starts_as_soon_as_without_us(following: Placed) -> None:
    """Slurm takes no notice of what parts that start together prefer."""
    done = following.slurm.run(
        "sbatch", "--parsable", HINT, "-n1", ":", f"--dataset={LABELS}", "-n1", "--wrap", "true"
    )
    id_ = done.stdout.strip()
    began = time.monotonic()
    assert following.landed(id_, began).seconds < SOON_SECONDS
    said = [admin_comment(job) for job in following.slurm.jobs(id_)]
    assert [each["dataset"] for each in said] == [IMAGES, LABELS]
    assert {(each["did"], each["why"]) for each in said} == {("nothing", "het-job")}


# More than one dataset, and those that nobody counts


def test_datasets_named_together_are_placed_by_the_first_then_by_all(following: Placed) -> None:
    both = f"{IMAGES},{LABELS}"
    first = following.place(f"--dataset={both}", script=STAYS)
    assert first.said["dataset"] == both
    assert first.nodes == ["n4"]
    wait_until(lambda: f"\nwith {LABELS}\n" in following.ranking(IMAGES), "somebody remembers")
    # There is more of the labels.
    assert following.place(f"--dataset={both}").nodes == ["n1"]
    assert following.place(HINT).nodes == ["n4"]


def test_a_dataset_deeper_than_is_counted_is_followed_once_it_was_named(
    following: Placed,
) -> None:
    deep = "s3://train/video/2026/november/clips"
    following.put(deep)
    following.warm(deep, "n1")
    first = following.place(f"--dataset={deep}", script=STAYS)
    assert first.said["why"] == "no-ranking"
    following.await_first(deep, "n1")
    assert following.place(f"--dataset={deep}").nodes == ["n1"]


# What the operator is shown


def rank(placed: Placed, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("feedrack-affinity")
    return subprocess.run(
        [str(program), "rank", "--config", str(placed.config_path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SLURM_CONF": str(placed.slurm.etc / "slurm.conf"), "COLUMNS": "200"},
    )


def test_the_operator_is_shown_where_jobs_go_and_why(following: Placed) -> None:
    done = rank(following, IMAGES)
    assert done.returncode == 0, done.stderr
    assert "node n4" in done.stdout
    assert "rack rack2" in done.stdout
    shown = json.loads(rank(following, IMAGES, "--json").stdout)
    assert shown["dataset"] == IMAGES
    assert shown["held"][0]["host"] == "n4"
    assert shown["places"]["main"][0]["feature"] == "n4"
    assert shown["readers"] == ["demo"]
    # A folder that nobody counts is asked for.
    deeper = json.loads(rank(following, f"{IMAGES}/no/such/folder", "--json").stdout)
    assert deeper["held"] == []


def test_the_operator_is_shown_what_is_busy_and_what_jobs_follow(following: Placed) -> None:
    following.slurm.occupy("n4")
    wait_until(lambda: " 100% " in rank(following, IMAGES).stdout, "somebody is shown as busy")
    shown = json.loads(rank(following, IMAGES, "--json").stdout)
    load = {each["feature"]: each["load"] for each in shown["places"]["main"]}
    assert (load["n4"], load["rack2"]) == (1.0, 0.5)
    file = shown["file"]
    assert (file["state"], file["places"]["main"][0]) == ("good", "n4")
    assert f"Jobs follow {file['path']}, good for " in rank(following, IMAGES).stdout
    following.end_daemon()
    try:
        Path(file["path"]).unlink()
        assert f"there is no {file['path']}" in rank(following, IMAGES).stdout
    finally:
        following.start_daemon()


def test_a_name_that_is_no_dataset_is_wrong_use(following: Placed) -> None:
    done = rank(following, "images")
    assert done.returncode == 2
    assert "images: not s3://bucket/prefix" in done.stderr
