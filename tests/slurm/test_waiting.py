"""A job that was told to wait for its data waits for their places alone, and no longer than it was
told, whatever becomes of those who see to it."""

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.slurm.placed import STAYS, Placed, admin_comment
from tests.waiting import wait_until

IMAGES = "s3://train/images"
HINT = f"--dataset={IMAGES}"
WAITING = (HINT, "--dataset-wait=10")
SOON_SECONDS = 20.0
SHORT_SECONDS = 2


@pytest.fixture(scope="module")
def cluster(slurm_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    """n4 holds the images: the places are it and rack2."""
    with Placed(
        tmp_path_factory.mktemp("placed"),
        gateways=("n4",),
        affinity={"warming": {"enabled": False}},
    ) as placed:
        placed.put(IMAGES)
        placed.warm(IMAGES, "n4")
        yield placed


@pytest.fixture
def waiting(placed: Placed) -> Iterator[Placed]:
    """Idle, the daemon running, and the places in the ranking."""
    placed.ensure_daemon()
    placed.await_first(IMAGES, "n4")
    yield placed
    placed.ensure_daemon()


def test_a_job_starts_at_once_where_its_data_are_if_there_is_room(waiting: Placed) -> None:
    job = waiting.place(*WAITING)
    assert job.nodes == ["n4"]
    assert job.seconds < SOON_SECONDS


def test_a_job_waits_for_its_places_while_others_are_idle(waiting: Placed) -> None:
    id_ = _bound(waiting)
    assert _said(waiting, id_, "wait") - _said(waiting, id_, "begin") == 600
    waiting.stays_pending(id_)
    waiting.slurm.free("n3")
    assert waiting.landed(id_).nodes == ["n3"]


@pytest.mark.parametrize(
    ("arguments", "script"),
    [
        ((HINT, "--comment", "dataset-wait=10"), "true"),
        ((HINT,), "#!/bin/sh\n#DATASET-WAIT 10\ntrue\n"),
        (("--comment", f"dataset={IMAGES}"), "#!/bin/sh\n#DATASET-WAIT 10\ntrue\n"),
        (("--dataset-wait=10",), f"#!/bin/sh\n#DATASET {IMAGES}\ntrue\n"),
    ],
    ids=["option-comment", "option-line", "comment-line", "line-option"],
)
def test_a_wait_may_be_said_elsewhere_than_the_dataset(
    waiting: Placed, arguments: tuple[str, ...], script: str
) -> None:
    waiting.slurm.occupy("n3", "n4")
    id_ = waiting.slurm.sbatch(*arguments, script=script)
    _until_bound(waiting, id_)
    assert _said(waiting, id_, "wait") - _said(waiting, id_, "begin") == 600


def test_srun_waits_too(waiting: Placed) -> None:
    waiting.slurm.occupy("n4")
    done = waiting.slurm.run("srun", *WAITING, "sh", "-c", "echo $SLURMD_NODENAME")
    assert done.stdout == "n3\n"


def test_a_job_of_two_nodes_waits_for_its_rack(waiting: Placed) -> None:
    id_ = _bound(waiting, "-N2")
    waiting.stays_pending(id_)
    waiting.slurm.free("n3", "n4")
    assert waiting.landed(id_).nodes == ["n3", "n4"]


def test_at_the_bound_a_job_starts_anywhere(waiting: Placed) -> None:
    """The one that takes its whole minute."""
    waiting.slurm.occupy("n3", "n4")
    submitted = time.time()
    id_ = waiting.slurm.sbatch(HINT, "--dataset-wait=1")
    _until_bound(waiting, id_)
    job = waiting.slurm.wait(id_, "RUNNING", "COMPLETED", seconds=90)
    waited = time.time() - submitted
    assert job["NodeList"] in ("n1", "n2")
    assert job["Features"] == "(null)"
    assert 58 < waited < 60 + SOON_SECONDS


def test_at_the_bound_a_job_keeps_its_own_constraint(waiting: Placed) -> None:
    id_ = _bound(waiting, "-C", "rack2")
    assert _features(waiting, id_).startswith("rack2&[")
    _shorten(waiting, id_)
    wait_until(lambda: _features(waiting, id_) == "rack2", "it is let go")
    waiting.stays_pending(id_)
    waiting.slurm.free("n4")
    assert waiting.landed(id_).nodes == ["n4"]


# Those who see to it


def test_a_killed_daemon_keeps_no_job_waiting(waiting: Placed) -> None:
    id_ = _bound(waiting)
    waiting.end_daemon(signal.SIGKILL)
    _shorten(waiting, id_)
    assert waiting.landed(id_).nodes[0] in ("n1", "n2")


def test_a_daemon_that_stands_still_keeps_no_job_waiting(waiting: Placed) -> None:
    id_ = _bound(waiting)
    waiting.signal_daemon(signal.SIGSTOP)
    _shorten(waiting, id_)
    assert waiting.landed(id_).nodes[0] in ("n1", "n2")


def test_without_a_daemon_a_job_waits_for_nothing_but_the_bound(waiting: Placed) -> None:
    waiting.end_daemon(signal.SIGKILL)
    waiting.slurm.occupy("n3", "n4")
    submitted = time.time()
    id_ = waiting.slurm.sbatch(HINT, "--dataset-wait=1")
    assert _features(waiting, id_) == "(null)"
    job = waiting.slurm.job(id_)
    eligible = time.mktime(time.strptime(job["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 58 < eligible - submitted < 65
    # Slurm itself starts it then. So as not to wait for that, an operator says it is now.
    waiting.slurm.run("scontrol", "update", f"JobId={id_}", "StartTime=now")
    assert waiting.landed(id_).nodes[0] in ("n1", "n2")


def test_a_daemon_binds_what_was_submitted_without_it(waiting: Placed) -> None:
    waiting.end_daemon(signal.SIGKILL)
    waiting.slurm.occupy("n3", "n4")
    id_ = waiting.slurm.sbatch(*WAITING)
    waiting.start_daemon()
    _until_bound(waiting, id_)
    waiting.slurm.free("n4")
    assert waiting.landed(id_).nodes == ["n4"]


def test_a_daemon_that_starts_anew_goes_on(waiting: Placed) -> None:
    first, second = _bound(waiting), waiting.slurm.sbatch(*WAITING, "--exclusive")
    _until_bound(waiting, second)
    waiting.end_daemon(signal.SIGKILL)
    waiting.kill_guards()
    waiting.start_daemon()
    waiting.slurm.free("n4")
    assert waiting.landed(first).nodes == ["n4"]
    waiting.slurm.occupy("n4")
    if waiting.slurm.state(second) == "PENDING":
        _shorten(waiting, second)
    assert set(waiting.landed(second).nodes) <= {"n1", "n2", "n4"}


def test_a_killed_guard_keeps_no_job_waiting_and_the_next_job_has_another(
    waiting: Placed,
) -> None:
    id_ = _bound(waiting)
    assert len(waiting.guards()) == 1
    waiting.kill_guards()
    _shorten(waiting, id_)
    assert waiting.landed(id_).nodes[0] in ("n1", "n2")
    other = waiting.slurm.sbatch(*WAITING)
    _until_bound(waiting, other)
    assert len(waiting.guards()) == 1
    waiting.end_daemon(signal.SIGKILL)
    _shorten(waiting, other)
    assert waiting.landed(other).nodes[0] in ("n1", "n2")


# What else may be asked for, and what may happen to the job


def test_a_job_that_begins_later_waits_from_then_on(waiting: Placed) -> None:
    submitted = time.time()
    id_ = waiting.slurm.sbatch(*WAITING, "--begin=now+6")
    begin = _said(waiting, id_, "begin")
    assert submitted + 4 < begin < submitted + 10
    assert _said(waiting, id_, "wait") - begin == 600
    job = waiting.landed(id_)
    assert time.time() >= begin
    assert job.nodes == ["n4"]


def test_a_job_whose_places_are_drained_is_let_go(waiting: Placed) -> None:
    id_ = _bound(waiting)
    began = time.monotonic()
    waiting.slurm.drain("n3")
    waiting.slurm.drain("n4")
    job = waiting.landed(id_, began)
    assert job.nodes[0] in ("n1", "n2")
    assert job.seconds < SOON_SECONDS


def test_a_job_with_drained_places_does_not_begin_to_wait(waiting: Placed) -> None:
    waiting.slurm.drain("n3")
    waiting.slurm.drain("n4")
    job = waiting.place(*WAITING)
    assert job.nodes[0] in ("n1", "n2")
    assert job.seconds < SOON_SECONDS


def test_a_constraint_that_its_user_changed_is_left_alone(waiting: Placed) -> None:
    id_ = _bound(waiting)
    waiting.slurm.occupy("n1", "n2")
    waiting.slurm.run("scontrol", "update", f"JobId={id_}", "Features=rack1")
    _shorten(waiting, id_, seconds=1)
    waiting.stays_pending(id_)
    assert _features(waiting, id_) == "rack1"
    waiting.slurm.free("n2")
    assert waiting.landed(id_).nodes == ["n2"]


def test_a_job_that_is_held_meanwhile_is_let_go_all_the_same(waiting: Placed) -> None:
    id_ = _bound(waiting)
    waiting.slurm.run("scontrol", "hold", id_)
    _shorten(waiting, id_)
    wait_until(lambda: _features(waiting, id_) == "(null)", "it is let go")
    assert waiting.slurm.state(id_) == "PENDING"
    waiting.slurm.run("scontrol", "release", id_)
    assert waiting.landed(id_).nodes[0] in ("n1", "n2")


def test_a_job_that_is_requeued_waits_no_longer_than_it_was_to(waiting: Placed) -> None:
    job = waiting.place(*WAITING, "--requeue", script=STAYS)
    assert job.nodes == ["n4"]
    waiting.slurm.wait(job.id, "RUNNING")
    waiting.slurm.occupy("n3")
    waiting.slurm.drain("n4")
    waiting.slurm.run("scontrol", "requeue", job.id)
    waiting.slurm.wait(job.id, "PENDING")
    _shorten(waiting, job.id)
    wait_until(lambda: _features(waiting, job.id) == "(null)", "it is let go")
    # A job that was requeued rests for a while, whoever it is of.
    waiting.slurm.run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    assert waiting.landed(job.id).nodes[0] in ("n1", "n2")


def test_a_cancelled_job_is_forgotten(waiting: Placed) -> None:
    id_ = _bound(waiting)
    waiting.slurm.cancel(id_)
    assert waiting.slurm.wait(id_, "CANCELLED")["NodeList"] in ("", "(null)")
    waiting.slurm.free("n4")
    assert waiting.place(*WAITING).nodes == ["n4"]


def _bound(waiting: Placed, *arguments: str) -> str:
    """A job that waits for rack2, which is busy."""
    waiting.slurm.occupy("n3", "n4")
    id_ = waiting.slurm.sbatch(*WAITING, *arguments)
    _until_bound(waiting, id_)
    return id_


def _until_bound(waiting: Placed, id_: str) -> None:
    wait_until(
        lambda: waiting.slurm.job(id_)["Features"] == _places(waiting, id_),
        f"job {id_} is bound\n{waiting.log[-2000:]}",
    )


def _places(waiting: Placed, id_: str) -> str:
    return admin_comment(waiting.slurm.job(id_))["places"]


def _features(waiting: Placed, id_: str) -> str:
    return waiting.slurm.job(id_)["Features"]


def _said(waiting: Placed, id_: str, name: str) -> int:
    return int(admin_comment(waiting.slurm.job(id_))[name])


def _shorten(waiting: Placed, id_: str, *, seconds: int = SHORT_SECONDS) -> None:
    """As an operator may: the wait ends so soon from now."""
    said = waiting.slurm.job(id_)["AdminComment"]
    sooner = re.sub(r" wait=\d+", f" wait={int(time.time()) + seconds}", said)
    waiting.slurm.run("scontrol", "update", f"JobId={id_}", f"AdminComment={sooner}")
