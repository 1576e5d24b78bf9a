"""Waits: bound while there is time, let go at the bound, and never twice."""

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scheduler_plugin.holding import Bind, Bounds, Relax, Step, Unprefer, bound_by, decide
from scheduler_plugin.slurm.model import Host, Job

NOW = 1_796_000_000.0
BOUND = NOW + 600
PLACES = "gpu&[n4|rack2]"
SUBMITTED = Job(
    id=7,
    state="pending",
    user="alice",
    features="gpu",
    eligible=BOUND,
    admin_comment=(
        f"feedrack did=preferred prefer=gpu&[n4|rack2|all] begin={NOW:.0f} wait={BOUND:.0f} "
        f"places={PLACES} constraint=gpu dataset=s3://train/imagenet"
    ),
)
HELD = replace(SUBMITTED, features=PLACES, eligible=NOW)
RELAXED = replace(SUBMITTED, eligible=NOW)
RACK2 = [Host("n3", frozenset({"n3", "rack2"}), ())]
RACK1 = [Host("n1", frozenset({"n1", "rack1", "gpu"}), ())]


def steps(job: Job, now: float, hosts: Sequence[Host] | None = None) -> list[Step]:
    return list(decide([job], now, hosts=hosts))


def test_a_job_as_it_was_submitted_is_bound_to_its_places() -> None:
    assert steps(SUBMITTED, NOW, RACK2) == [Bind(7, PLACES, NOW)]


def test_one_that_is_bound_is_left_so_until_its_bound() -> None:
    assert steps(HELD, BOUND - 1, RACK2) == []
    assert bound_by(HELD) is not None


def test_at_the_bound_it_gets_back_what_it_came_with() -> None:
    assert steps(HELD, BOUND) == [Relax(7, "gpu")]
    assert steps(HELD, BOUND + 10_000) == [Relax(7, "gpu")]


def test_once_relaxed_it_is_not_bound_again() -> None:
    assert steps(RELAXED, NOW + 1, RACK2) == []
    assert bound_by(RELAXED) is None


def test_a_wait_that_is_almost_over_is_left_to_slurm() -> None:
    assert steps(SUBMITTED, BOUND - 1, RACK2) == []


def test_where_none_of_its_places_can_be_had_it_does_not_wait() -> None:
    assert steps(HELD, NOW, RACK1) == [Relax(7, "gpu")]
    assert steps(SUBMITTED, NOW, RACK1) == [Bind(7, "gpu", NOW)]
    gone = [replace(RACK2[0], usable=False)]
    assert steps(HELD, NOW, gone) == [Relax(7, "gpu")]


def test_what_its_user_has_changed_stays_changed() -> None:
    assert steps(replace(HELD, features="n1"), BOUND + 1) == []
    assert steps(replace(SUBMITTED, features="n1"), NOW) == []
    assert steps(replace(SUBMITTED, eligible=BOUND + 86_400), NOW) == []


@pytest.mark.parametrize("word", ["", "(null)"])
def test_no_constraint_has_two_spellings(word: str) -> None:
    comment = SUBMITTED.admin_comment.replace("constraint=gpu", "constraint=")
    job = replace(SUBMITTED, features=word, admin_comment=comment)
    assert steps(job, NOW) == [Bind(7, PLACES, NOW)]
    assert steps(replace(HELD, admin_comment=comment), BOUND) == [Relax(7, "")]


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "feedrack did=preferred prefer=[n4|rack2] dataset=s3://train/imagenet",
        "feedrack did=nothing why=no-ranking dataset=s3://train/imagenet",
        "feedrack did=preferred wait=x begin=y places=n4 constraint= dataset=s3://train/imagenet",
        "feedrack did=preferred wait=inf begin=nan places=n4 constraint= dataset=s3://train/imagenet",
        # What cannot be a word of a command, or a time, for the one binding and for the other.
        SUBMITTED.admin_comment.replace("[n4|rack2] constraint=gpu", "%00 constraint=gpu"),
        SUBMITTED.admin_comment.replace("constraint=gpu", "constraint=gpu%20x"),
        re.sub(" begin=[0-9]+", " begin=-1e300", SUBMITTED.admin_comment),
        re.sub(" wait=[0-9]+", " wait=inf", SUBMITTED.admin_comment),
    ],
)
def test_jobs_without_a_wait_are_none_of_its_business(comment: str) -> None:
    for job in (SUBMITTED, HELD):
        assert steps(replace(job, admin_comment=comment), BOUND + 1, RACK1) == []


def test_a_job_that_runs_is_left_alone() -> None:
    assert steps(replace(HELD, state="running"), BOUND + 1) == []


def test_a_job_that_slurm_has_given_up_loses_its_preference() -> None:
    job = replace(
        SUBMITTED,
        reason="BadConstraints",
        prefer="[n4|rack2|all]",
        admin_comment="feedrack did=preferred prefer=[n4|rack2|all] dataset=s3://train/imagenet",
    )
    assert steps(job, NOW) == [Unprefer(7)]
    assert steps(replace(job, prefer=""), NOW) == []
    assert steps(replace(job, prefer="n9"), NOW) == []
    assert steps(replace(job, reason="Resources"), NOW) == []


def test_one_that_was_given_up_while_bound_is_tried_again() -> None:
    assert steps(replace(HELD, reason="BadConstraints"), BOUND) == [Relax(7, "gpu", release=True)]


@pytest.mark.parametrize("comment", ["", "see ticket 5"])
def test_a_bound_job_whose_admin_comment_is_written_over_is_let_go(comment: str) -> None:
    bounds = Bounds()
    over = replace(HELD, admin_comment=comment, comment="dataset=s3://train/imagenet")
    assert steps(over, BOUND) == []
    bounds.restore([HELD])
    for _ in range(2):
        [job] = bounds.restore([over])
        assert steps(job, BOUND) == [Relax(7, "gpu")]
    [job] = bounds.restore([replace(over, features="gpu")])
    assert steps(job, BOUND) == []
    assert list(bounds.restore([over])) == [over]


def test_what_an_operator_says_of_a_bound_counts() -> None:
    bounds = Bounds()
    bounds.restore([HELD])
    sooner = replace(HELD, admin_comment=HELD.admin_comment.replace(f"{BOUND:.0f}", f"{NOW:.0f}"))
    assert list(bounds.restore([sooner])) == [sooner]
    bounds.restore([])
    gone = replace(HELD, admin_comment="")
    assert list(bounds.restore([gone])) == [gone]
