"""What Slurm prints, of the releases that were at hand, and what no release prints."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.slurm.model import Host, SlurmUnavailable
from scheduler_plugin.slurm.records import (
    default_partition,
    expand_hosts,
    lacks_expected_hosts,
    read_hosts,
    read_jobs,
    release_of,
)

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize("release", ["22.5.8", "24.11.5"])
def test_jobs_are_read_alike_of_both_releases(release: str) -> None:
    raw = (SAMPLES / f"squeue-{release}.json").read_bytes()
    jobs = {each.id: each for each in read_jobs(raw)}
    running = jobs[1]
    assert (running.state, running.hosts, running.user) == ("running", ("n4",), "root")
    assert running.admin_comment.endswith("dataset=s3://train/imagenet")
    assert running.start > 1_796_000_000
    assert jobs[2].hosts == ("n3", "n4")
    waiting = jobs[5]
    assert (waiting.state, waiting.hosts, waiting.features) == ("pending", (), "")
    assert waiting.eligible == waiting.start > running.start
    assert waiting.reason == "BeginTime"
    assert lacks_expected_hosts(raw) == (release == "22.5.8")
    assert jobs[8].hosts == (() if release == "22.5.8" else ("n1", "n2", "n3", "n4"))


def node(**how: Any) -> bytes:
    known = {"name": "n1", "state": ["IDLE"], "features": ["rack1", "n1"], "partitions": ["main"]}
    return json.dumps({"nodes": [known | {"cpus": 4, "alloc_cpus": 1} | how]}).encode()


@pytest.mark.parametrize("features", [["rack1", "n1"], "rack1,n1"])
@pytest.mark.parametrize("state", ["idle", ["IDLE"], ["MIXED", "CLOUD"], "mixed+planned"])
def test_hosts_are_read_alike_of_both_releases(features: Any, state: Any) -> None:
    [host] = read_hosts(node(features=features, state=state))
    assert host == Host("n1", frozenset({"rack1", "n1"}), ("main",), cpus=4, load=0.25)


@pytest.mark.parametrize(
    "how",
    [
        {"state": "down"},
        {"state": "idle", "state_flags": ["DRAIN"]},
        {"state": ["IDLE", "DRAIN"]},
        {"state": ["MIXED", "NOT_RESPONDING"]},
        {"state": ["ALLOCATED", "MAINTENANCE"]},
        {"state": "idle+drain"},
        {"state": "unknown"},
    ],
)
def test_hosts_on_which_nothing_starts_are_told_apart(how: dict[str, Any]) -> None:
    [host] = read_hosts(node(**how))
    assert not host.usable


def test_bytes_that_are_no_text_do_not_hide_the_other_jobs() -> None:
    raw = b'{"jobs": [{"job_id": 1, "job_state": "PENDING", "comment": "\xff\xfe"}]}'
    [job] = read_jobs(raw)
    assert (job.id, job.state) == (1, "pending")


def test_a_user_who_is_gone_does_not_hide_the_other_jobs() -> None:
    raw = b'{"jobs": [{"job_id": 1, "job_state": "PENDING", "user_name": null}]}'
    assert read_jobs(raw)[0].user == ""


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"jobs": 1}', b'{"jobs": [{"job_id": "x"}]}', b"[" * 100_000]
)
def test_what_is_no_answer_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(SlurmUnavailable):
        read_jobs(raw)
    with pytest.raises(SlurmUnavailable):
        read_hosts(raw)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", "pending"), (["PENDING", "REQUEUED"], "pending"), ("CONFIGURING", "running"),
        (["RUNNING", "CONFIGURING"], "running"), ("SUSPENDED", "running"), ("COMPLETED", "ended"),
        (["COMPLETED", "COMPLETING"], "ended"), ("CANCELLED", "ended"), ("NEW_WORD", "ended"),
        ([], "ended"),
    ],
)  # fmt: skip
def test_states_come_down_to_three(state: Any, expected: str) -> None:
    raw = json.dumps({"jobs": [{"job_id": 1, "job_state": state}]}).encode()
    assert read_jobs(raw)[0].state == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5.0), (None, 0.0), ({"set": True, "infinite": False, "number": 5}, 5.0),
        ({"set": False, "infinite": False, "number": 5}, 0.0),
        ({"set": True, "infinite": True, "number": 5}, 0.0),
    ],
)  # fmt: skip
def test_a_number_may_not_be_set(value: Any, expected: float) -> None:
    raw = json.dumps({"jobs": [{"job_id": 1, "job_state": "PENDING", "start_time": value}]})
    assert read_jobs(raw.encode())[0].start == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")), ("gpu-[01-02]", ("gpu-01", "gpu-02")),
        ("a,b[1-2]", ("a", "b1", "b2")), ("", ()), ("n[1-", ()), ("@all", ()),
        ("n[1-99999999]", ()), ("a[1-1000]b[1-1000]", ()),
    ],
)  # fmt: skip
def test_lists_of_hosts_are_expanded_within_reason(text: str, expected: tuple[str, ...]) -> None:
    assert expand_hosts(text) == expected


@given(text=st.text(alphabet="n1[]-,0@/ \x00", max_size=30))
def test_any_list_of_hosts_harms_nothing(text: str) -> None:
    expand_hosts(text)


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for read in (read_jobs, read_hosts):
        try:
            read(raw)
        except SlurmUnavailable:
            continue


def test_the_release_and_the_default_partition() -> None:
    assert release_of("slurm 24.11.5\n") == (24, 11, 5)
    assert release_of("slurm-wlm 22.05.8") == (22, 5, 8)
    assert release_of("slurm 25.11.0-0rc1") == (25, 11, 0)
    with pytest.raises(SlurmUnavailable):
        release_of("not found")
    assert default_partition(["small", "main*"]) == "main"
    assert default_partition(["small"]) == ""
