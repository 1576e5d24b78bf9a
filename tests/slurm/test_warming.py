"""The racks that jobs are about to run in begin to warm before they read."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.process import ADMIN_TOKEN
from tests.slurm.placed import STAYS, Placed
from tests.waiting import wait_until

RACKS = {"n1": "rack1", "n2": "rack1", "n3": "rack2", "n4": "rack2"}
# Asks the gateway what it knows of this job, and then reads for the first time. The sleep is what a
# training job takes at the least until it has come so far.
READS = """#!/bin/bash
sleep 2
ask() {{
    exec 3<>/dev/tcp/$1/$2
    printf 'GET %s HTTP/1.1\\r\\nConnection: close\\r\\nHost: %s\\r\\n' "$4" "$3" >&3
    printf 'Authorization: %s\\r\\n\\r\\n' "$5" >&3
    cat <&3
    echo
}}
ask {admin_host} {admin_port} admin "/v1/prefetch?job=$SLURM_JOB_ID" 'Bearer {token}'
echo READING
exec 3<>/dev/tcp/{host}/{port}
printf 'GET %s HTTP/1.1\\r\\nConnection: close\\r\\nHost: {host}:{port}\\r\\n\\r\\n' '{path}' >&3
sed '/^\r$/q' <&3
"""


@pytest.fixture(scope="module")
def cluster(slurm_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    """A gateway in each rack. Jobs here may run for an hour: so long ahead is looked."""
    with Placed(
        tmp_path_factory.mktemp("placed"),
        gateways=("n1", "n3"),
        affinity={"warming": {"ahead_seconds": 7200}},
    ) as placed:
        # The daemon is up once it has made a ranking.
        placed.put("s3://train/held")
        placed.warm("s3://train/held", "n1")
        placed.await_first("s3://train/held", "n1")
        yield placed


@pytest.fixture
def warming(placed: Placed) -> Iterator[Placed]:
    placed.ensure_daemon()
    yield placed
    placed.ensure_daemon()


@pytest.fixture
def dataset(warming: Placed) -> str:
    """One that nobody has heard of yet."""
    name = f"s3://train/{uuid.uuid4().hex}"
    warming.put(name)
    return name


def test_a_gateway_sees_the_prefetch_before_the_jobs_first_read(
    warming: Placed, dataset: str
) -> None:
    node = warming.fleet.node(0)
    key = f"{dataset.removeprefix('s3://train/')}/0000.bin"
    url = warming.fleet.client(0, signature_version="s3v4").generate_presigned_url(
        "get_object", Params={"Bucket": "train", "Key": key}
    )
    found = re.fullmatch(r"http://([^:/]+):(\d+)(/.*)", url)
    admin = re.fullmatch(r"http://([^:/]+):(\d+)", node.admin_url)
    assert found is not None
    assert admin is not None
    script = READS.format(
        admin_host=admin[1],
        admin_port=admin[2],
        token=ADMIN_TOKEN,
        host=found[1],
        port=found[2],
        path=found[3],
    )
    job = warming.place(f"--dataset={dataset}", "-C", "rack1", script=script)
    warming.slurm.wait(job.id, "COMPLETED")
    asked, reading, read = warming.slurm.output(job.id).partition("READING\n")
    assert reading
    assert " 200 " in read.splitlines()[0]
    seen = json.loads(asked.partition("\n\n")[2])["prefetches"]
    assert [(each["job"], each["dataset"], each["racks"]) for each in seen] == [
        (job.id, f"{dataset}/", ["rack1"])
    ], f"{asked}\n{read}\n{warming.log}"


@pytest.mark.parametrize("rack", ["rack1", "rack2"])
def test_the_rack_is_warmed_that_the_job_runs_in(warming: Placed, dataset: str, rack: str) -> None:
    """Which is then where the next one goes, whatever else is idle."""
    job = warming.place(f"--dataset={dataset}", "-C", rack, script=STAYS)
    asked = _until_asked(warming, job.id)
    assert asked["racks"] == [rack]
    assert asked["priority"] == 1000
    wait_until(lambda: _asked(warming, job.id)[0]["state"] == "done", "it ends")
    warming.await_first(dataset, {"rack1": "n1", "rack2": "n3"}[rack])
    assert RACKS[warming.place(f"--dataset={dataset}").nodes[0]] == rack


def test_a_job_of_both_racks_warms_both(warming: Placed, dataset: str) -> None:
    job = warming.place(f"--dataset={dataset}", "-N4", script=STAYS)
    assert sorted(_until_asked(warming, job.id)["racks"]) == ["rack1", "rack2"]


def test_each_dataset_of_a_job_is_warmed(warming: Placed, dataset: str) -> None:
    other = f"{dataset}-labels"
    warming.put(other)
    job = warming.place(f"--dataset={dataset},{other}", "-C", "rack2", script=STAYS)
    wait_until(lambda: len(_asked(warming, job.id)) == 2, "both are asked for")
    assert {each["dataset"] for each in _asked(warming, job.id)} == {f"{dataset}/", f"{other}/"}


def test_a_queued_job_is_warmed_for_where_it_is_expected_to_start(
    warming: Placed, dataset: str
) -> None:
    warming.slurm.occupy("n1", "n2", "n3", "n4")
    id_ = warming.slurm.sbatch(f"--dataset={dataset}", "-C", "rack2", "--exclusive", script=STAYS)
    asked = _until_asked(warming, id_)
    assert warming.slurm.state(id_) == "PENDING"
    assert asked["racks"] == ["rack2"]
    assert asked["priority"] < 900
    warming.slurm.free("n3")
    assert warming.landed(id_).nodes == ["n3"]
    assert len(_asked(warming, id_)) == 1


def test_what_was_asked_for_a_job_is_called_off_with_it(warming: Placed, dataset: str) -> None:
    # So many that they are not there at once.
    warming.put(dataset, objects=3000, size_bytes=100)
    warming.slurm.occupy("n1", "n2", "n3", "n4")
    id_ = warming.slurm.sbatch(f"--dataset={dataset}", "-C", "rack2", script=STAYS)
    assert _until_asked(warming, id_)["state"] == "running"
    warming.slurm.cancel(id_)
    wait_until(lambda: _asked(warming, id_)[0]["state"] != "running", "it goes on no longer")
    called_off = _asked(warming, id_)[0]
    assert called_off["state"] == "cancelled"
    assert called_off["objects"]["done"] < 3000


def test_tasks_that_share_a_dataset_and_a_rack_share_a_prefetch(
    warming: Placed, dataset: str
) -> None:
    id_ = warming.slurm.sbatch(f"--dataset={dataset}", "--array=1-4", "--exclusive", script=STAYS)
    for number in (1, 2, 3, 4):
        warming.landed(f"{id_}_{number}")
    wait_until(lambda: _racks(warming, dataset) == ["rack1", "rack2"], "both are warmed")
    wait_until(lambda: _listened(warming), "no requests lie unread")
    assert _racks(warming, dataset) == ["rack1", "rack2"]


def test_with_warming_switched_off_nothing_is_asked_for(warming: Placed, dataset: str) -> None:
    warming.end_daemon()
    warming.start_daemon(warming={"enabled": False})
    try:
        job = warming.place(f"--dataset={dataset}", script=STAYS)
        wait_until(lambda: _listened(warming), "no requests lie unread")
        seen = warming.state / "seen.json"
        wait_until(lambda: dataset in seen.read_text(), "the daemon sees it")
        assert _asked(warming, job.id) == []
        assert _of(warming, dataset) == []
    finally:
        warming.end_daemon()


def test_who_may_not_read_warms_nothing(warming: Placed, dataset: str) -> None:
    warming.end_daemon()
    warming.start_daemon(readers={"demo": ["daemon"]})
    hint = (f"--dataset={dataset}", "--export=NONE")
    try:
        stranger = warming.place(*hint, "-C", "rack1", script=STAYS, user="nobody")
        friend = warming.place(*hint, "-C", "rack1", script=STAYS, user="daemon")
        _until_asked(warming, friend.id)
        assert _asked(warming, stranger.id) == []
    finally:
        warming.end_daemon()


def test_a_job_that_started_without_a_daemon_is_warmed_for_by_the_next(
    warming: Placed, dataset: str
) -> None:
    warming.end_daemon()
    job = warming.place(f"--dataset={dataset}", "-C", "rack2", script=STAYS)
    wait_until(lambda: not _listened(warming), "the prolog leaves a request")
    warming.start_daemon()
    assert _until_asked(warming, job.id)["racks"] == ["rack2"]
    wait_until(lambda: _listened(warming), "no requests lie unread")


def _asked(warming: Placed, id_: str) -> list[dict[str, Any]]:
    """The prefetches that a gateway knows of a job."""
    found: list[dict[str, Any]] = warming.fleet.ask(0, f"/v1/prefetch?job={id_}")["prefetches"]
    return found


def _of(warming: Placed, dataset: str) -> list[dict[str, Any]]:
    """Those of a dataset."""
    found = warming.fleet.ask(0, "/v1/prefetch")["prefetches"]
    return [each for each in found if each["dataset"] == f"{dataset}/"]


def _racks(warming: Placed, dataset: str) -> list[str]:
    """Those that are warmed, as often as they are."""
    return sorted(rack for each in _of(warming, dataset) for rack in each["racks"])


def _until_asked(warming: Placed, id_: str) -> dict[str, Any]:
    wait_until(
        lambda: _asked(warming, id_), f"something is asked for job {id_}\n{warming.log[-2000:]}"
    )
    return _asked(warming, id_)[0]


def _listened(warming: Placed) -> bool:
    return not any(warming.requests.iterdir())
