"""What is brought in for whom, and what is called off."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from scheduler_plugin.dataset import Dataset, parse_dataset
from scheduler_plugin.slurm.model import Job
from scheduler_plugin.warming import (
    MOST_AHEAD,
    STARTED_PRIORITY,
    Ask,
    Asked,
    Cancel,
    Hasten,
    Key,
    Step,
    plan,
)

WALL = 1_796_000_000.0
IMAGENET = parse_dataset("s3://train/imagenet")
STARTED = Job(
    id=7,
    state="running",
    user="alice",
    start=WALL,
    hosts=("n3", "n4"),
    admin_comment="feedrack did=nothing why=no-ranking dataset=s3://train/imagenet",
)
WAITING = replace(STARTED, id=8, state="pending", start=WALL + 300, hosts=("n1",))
RACKS = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}


def racks_of(hosts: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(RACKS[host] for host in hosts))


def steps(
    *jobs: Job, asked: Mapping[Key, Asked] | None = None, now: float = 100.0, allowed: bool = True
) -> list[Step]:
    return plan(
        jobs,
        asked or {},
        racks_of=racks_of,
        may_read=lambda job, dataset: allowed,
        ahead_seconds=600,
        again_seconds=600,
        wall=WALL,
        now=now,
    )


def asked(*jobs: int, rack: str = "r2", at: float = 90.0, priority: int = 500) -> dict[Key, Asked]:
    return {(IMAGENET, rack): Asked("p1", frozenset(jobs), at, priority)}


def test_a_job_that_starts_has_its_rack_warmed_at_once() -> None:
    assert steps(STARTED) == [Ask(IMAGENET, ("r2",), 7, STARTED_PRIORITY)]


def test_a_job_that_waits_has_it_warmed_once_its_start_is_near() -> None:
    assert steps(WAITING) == [Ask(IMAGENET, ("r1",), 8, 600)]
    assert steps(replace(WAITING, start=WALL + 601)) == []
    assert steps(replace(WAITING, start=0.0)) == []
    assert steps(replace(WAITING, hosts=())) == []


def test_the_sooner_the_more_urgent() -> None:
    [sooner] = steps(replace(WAITING, start=WALL + 1))
    [later] = steps(replace(WAITING, start=WALL + 500))
    assert isinstance(sooner, Ask)
    assert isinstance(later, Ask)
    assert STARTED_PRIORITY > sooner.priority > later.priority > 0


def test_the_most_urgent_is_asked_for_first() -> None:
    """Whichever was submitted first: the gateways have room for so many."""
    early = replace(WAITING, id=1, start=WALL + 500, hosts=("n2",))
    asks = [each for each in steps(early, STARTED) if isinstance(each, Ask)]
    assert [each.job for each in asks] == [7, 1]


def test_a_user_has_only_so_much_warmed_ahead() -> None:
    """Others are to find room; what starts is warmed for all the same."""
    comment = WAITING.admin_comment
    flood = [
        replace(WAITING, id=100 + number, admin_comment=f"{comment}-{number}")
        for number in range(300)
    ]
    other = replace(WAITING, id=1000, user="bob")
    started = replace(STARTED, id=1001, admin_comment=f"{comment}-301")
    asks = [each for each in steps(*flood, other, started) if isinstance(each, Ask)]
    assert len(asks) == MOST_AHEAD + 2
    assert {1000, 1001} < {each.job for each in asks}
    before = {
        (each.dataset, each.racks[0]): Asked(str(each.job), frozenset({each.job}), 90.0, 600)
        for each in asks
        if each.job < 1000
    }
    assert not any(isinstance(each, Ask) for each in steps(*flood, asked=before))


def test_many_jobs_of_one_dataset_ask_once() -> None:
    array = [replace(STARTED, id=number) for number in range(100, 200)]
    assert len(steps(*array)) == 1


def test_what_was_asked_for_of_late_is_only_hastened() -> None:
    other = replace(STARTED, id=9)
    assert steps(STARTED, other, asked=asked(7)) == [
        Hasten("p1", 7, STARTED_PRIORITY),
        Hasten("p1", 9, STARTED_PRIORITY),
    ]
    assert steps(STARTED, asked=asked(7, priority=STARTED_PRIORITY)) == []


def test_what_grows_by_the_second_is_not_told_by_the_second() -> None:
    assert steps(WAITING, asked=asked(8, rack="r1", priority=590)) == []
    assert steps(WAITING, asked=asked(8, rack="r1", priority=500)) == [Hasten("p1", 8, 600)]


def test_after_a_while_it_is_asked_for_again_by_another_job() -> None:
    old = asked(7, at=-1000.0)
    assert steps(STARTED, asked=old | {}) == [Hasten("p1", 7, STARTED_PRIORITY)]
    assert steps(STARTED, replace(STARTED, id=9), asked=old)[0] == Ask(
        IMAGENET, ("r2",), 9, STARTED_PRIORITY
    )


def test_a_job_that_has_long_been_reading_is_not_warmed_for() -> None:
    assert steps(replace(STARTED, start=WALL - 1000)) == []


def test_what_nobody_needs_any_more_is_called_off() -> None:
    assert steps(asked=asked(7)) == [Cancel("p1")]
    assert steps(replace(WAITING, id=7, start=WALL + 10_000), asked=asked(7)) == []
    shared = replace(STARTED, id=9)
    assert steps(shared, asked=asked(7)) == [Hasten("p1", 9, STARTED_PRIORITY)]


def test_what_is_done_is_neither_called_off_nor_asked_for_again_for_a_while() -> None:
    done = {key: replace(each, over=True) for key, each in asked(7).items()}
    assert steps(asked=done) == []
    assert steps(replace(STARTED, id=9), asked=done) == [Hasten("p1", 9, STARTED_PRIORITY)]
    assert steps(asked=done, now=1000.0) == [Cancel("p1")]
    assert steps(replace(STARTED, id=9), asked=done, now=1000.0)[0] == Ask(
        IMAGENET, ("r2",), 9, STARTED_PRIORITY
    )


def test_who_may_not_read_it_has_nothing_warmed() -> None:
    assert steps(STARTED, allowed=False) == []


def test_each_dataset_of_a_hint_is_warmed() -> None:
    job = replace(STARTED, admin_comment=STARTED.admin_comment + ",s3://train/labels")
    found = [each.dataset for each in steps(job) if isinstance(each, Ask)]
    assert found == [IMAGENET, Dataset("train", "labels")]


def test_the_users_own_comment_will_do() -> None:
    job = replace(STARTED, admin_comment="", comment="dataset=s3://train/imagenet")
    assert len(steps(job)) == 1
