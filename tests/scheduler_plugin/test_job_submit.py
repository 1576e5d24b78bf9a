"""What the script does to a submission, and what it never does."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_plugin.dataset import BadHint, decode_value, file_name, parse_dataset, parse_hint
from scheduler_plugin.hints import hint_of
from scheduler_plugin.ranking import Place, Ranking
from scheduler_plugin.ranking_file import MOST_BYTES, Entry, Readers, Rules, render
from scheduler_plugin.slurm.model import Job
from tests.scheduler_plugin.lua import Controller

IMAGENET = parse_dataset("s3://train/imagenet")
LABELS = parse_dataset("s3://train/labels")
PLACES = (
    Place("n4", 1, 64, 900.0, "rack2"),
    Place("n3", 1, 64, 800.0, "rack2"),
    Place("rack2", 2, 64, 600.0),
    Place("rack1", 16, 64, 100.0),
)
EVERYBODY = Readers(everybody=True)


@pytest.fixture
def rankings(tmp_path: Path) -> Path:
    folder = tmp_path / "rankings"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def controller(rankings: Path, tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(rankings, tmp_path)
    yield controller
    controller.close()


def write(
    rankings: Path,
    *,
    places: tuple[Place, ...] = PLACES,
    readers: Readers = EVERYBODY,
    others: tuple[Entry, ...] = (),
    valid_seconds: float = 100.0,
    rules: Rules | None = None,
) -> Path:
    """A ranking of s3://train/imagenet, the same in both partitions."""
    rules = rules or Rules(default_partition="main", common_needed=False)
    rules = replace(rules, sizes={"main": 20, "small": 2, "*": 20})
    ranking = Ranking({"main": places, "small": places[:1], "*": places})
    content = render(
        IMAGENET,
        [Entry(ranking, readers), *others],
        expires=int(time.time() + valid_seconds),
        rules=rules,
    )
    name = file_name(IMAGENET)
    assert name is not None
    path = rankings / name
    path.write_bytes(content)
    return path


OPTION = "_SLURM_SPANK_OPTION_feedrack_dataset"
HINTS: tuple[dict[str, Any], ...] = (
    {"spank_job_env": ["X=1", f"{OPTION}=s3://train/imagenet"]},
    {"spank_job_env": {"1": f"{OPTION}=s3://train/imagenet/"}},
    {"comment": "dataset=s3://train/imagenet"},
    {"comment": "my job; dataset=s3://train/imagenet//"},
    {"script": "#!/bin/sh\n#SBATCH -N1\n#DATASET s3://train/imagenet\ntrue\n"},
)


@pytest.mark.parametrize("hint", HINTS)
def test_a_job_prefers_the_holders_and_then_the_racks(
    controller: Controller, rankings: Path, hint: dict[str, Any]
) -> None:
    path = write(rankings)
    done = controller.submit(**hint)
    assert done.code == 0
    assert done.prefer == "[n4|n3|rack2|rack1]"
    assert done.said["did"] == "preferred"
    assert done.said["dataset"] == "s3://train/imagenet"
    assert (done.opened, done.path) == (1, str(path))


def test_a_job_that_names_nothing_opens_nothing(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(comment="hello", script="#!/bin/sh\ntrue\n", spank_job_env=["A=b"])
    assert (done.opened, done.prefer, done.admin_comment) == (0, None, None)


def test_the_option_goes_before_the_comment(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(
        spank_job_env=[f"{OPTION}=s3://train/imagenet"], comment="dataset=s3://train/other"
    )
    assert done.prefer is not None


def test_the_users_constraint_stays_in_front(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(comment="dataset=s3://train/imagenet", features="gpu&ib")
    assert done.prefer == "gpu&ib&[n4|n3|rack2|rack1]"
    assert done.features == "gpu&ib"


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"min_nodes": 2}, "[rack2|rack1]"),
        ({"min_nodes": 3}, "rack1"),
        ({"min_nodes": 2, "max_nodes": 2}, "[rack2|rack1]"),
        ({"min_nodes": 1, "max_nodes": 4294967295}, "[n4|n3|rack2|rack1]"),
        ({"min_nodes": 17}, None),
        ({"num_tasks": 100}, "[rack2|rack1]"),
        ({"num_tasks": 64, "cpus_per_task": 65534}, "[n4|n3|rack2|rack1]"),
        ({"num_tasks": 64, "cpus_per_task": 3}, "rack1"),
    ],
)
def test_places_hold_the_whole_job(
    controller: Controller, rankings: Path, job: dict[str, int], expected: str | None
) -> None:
    write(rankings)
    done = controller.submit(comment="dataset=s3://train/imagenet", **job)
    assert done.prefer == expected
    if expected is None:
        assert done.said["why"] == "no-place"


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"req_nodes": "n1"}, "own-nodes"),
        ({"prefer": "n1"}, "own-preference"),
        ({"features": "[rack1|rack2]"}, "complex-constraint"),
        ({"features": "rack1*2"}, "complex-constraint"),
        ({"features": "a|b"}, "complex-constraint"),
        ({"array_inx": "1-3"}, "array-on-this-release"),
        ({"min_nodes": 2, "max_nodes": 8}, "range-of-nodes"),
        ({"het_job_offset": 0}, "het-job"),
    ],
)
def test_what_is_not_ours_to_decide_passes_untouched(
    controller: Controller, rankings: Path, job: dict[str, Any], why: str
) -> None:
    write(rankings, rules=Rules(arrays=False, default_partition="main", common_needed=False))
    done = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5", **job)
    assert done.prefer == job.get("prefer")
    assert done.begin_time is None
    assert done.said == {"did": "nothing", "why": why, "dataset": "s3://train/imagenet"}


def test_an_array_is_placed_where_the_release_can(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(comment="dataset=s3://train/imagenet", array_inx="1-3")
    assert done.prefer is not None


def test_the_partition_decides_which_places_there_are(
    controller: Controller, rankings: Path
) -> None:
    write(rankings)
    hint = {"comment": "dataset=s3://train/imagenet"}
    assert controller.submit(**hint, partition="small").prefer == "n4"
    assert controller.submit(**hint, partition="main,small").prefer == "[n4|n3|rack2|rack1]"
    assert controller.submit(**hint, partition="nowhere").said["why"] == "no-place"
    assert controller.submit(**hint, partition="main]\nn1").said["why"] == "no-place"


STRICT = Rules(default_partition="main", common_feature="feedrack")


def test_a_feature_that_all_have_comes_last(controller: Controller, rankings: Path) -> None:
    write(rankings, rules=STRICT)
    done = controller.submit(comment="dataset=s3://train/imagenet")
    assert done.prefer == "[n4|n3|rack2|rack1|feedrack]"


def test_to_wait_for_any_node_at_all_is_no_wait(controller: Controller, rankings: Path) -> None:
    write(rankings, rules=STRICT)
    done = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5")
    assert done.prefer == done.said["places"] == "[n4|n3|rack2|rack1]"
    several = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5", min_nodes=2)
    assert several.prefer is None
    assert several.said["places"] == "rack2"
    assert several.begin_time is not None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        # Of 20 nodes rack2 and rack1 leave 18 and 4 beside them, both together 2.
        ({"min_nodes": 2}, "[rack2|rack1|feedrack]"),
        ({"min_nodes": 3}, "[rack1|feedrack]"),
        ({"min_nodes": 5}, "no-place"),
        ({"min_nodes": 2, "features": "gpu"}, "several-nodes-of-some"),
        ({"min_nodes": 2, "exc_nodes": "n1"}, "several-nodes-of-some"),
        ({"min_nodes": 1, "features": "gpu"}, "gpu&[n4|n3|rack2|rack1|feedrack]"),
        # By its GPUs it may come to eight nodes, by its memory to as many as it has tasks.
        ({"tres_per_job": "gres:gpu:a100:8"}, "[n4|n3|rack2|feedrack]"),
        ({"tres_per_job": "gres/gpu=8", "features": "gpu"}, "several-nodes-of-some"),
        (
            {"tres_per_job": "gres:gpu:8", "max_nodes": 1, "min_nodes": 1},
            "[n4|n3|rack2|rack1|feedrack]",
        ),
        ({"min_mem_per_cpu": 100, "num_tasks": 18}, "[n4|n3|feedrack]"),
        ({"num_tasks": 18}, "[n4|n3|rack2|rack1|feedrack]"),
    ],
)
def test_where_a_preference_can_hold_a_job_for_ever_it_has_room_beside_it(
    controller: Controller, rankings: Path, job: dict[str, Any], expected: str
) -> None:
    write(rankings, rules=STRICT)
    done = controller.submit(comment="dataset=s3://train/imagenet", **job)
    assert (done.prefer or done.said["why"]) == expected


def test_without_such_a_feature_jobs_of_several_nodes_pass(
    controller: Controller, rankings: Path
) -> None:
    write(rankings, rules=Rules(default_partition="main", common_needed=True))
    hint = {"comment": "dataset=s3://train/imagenet"}
    assert controller.submit(**hint, min_nodes=2).said["why"] == "no-common-feature"
    assert controller.submit(**hint, min_nodes=1).prefer == "[n4|n3|rack2|rack1]"


def test_never_more_places_or_signs_than_slurm_bears(
    controller: Controller, rankings: Path
) -> None:
    many = tuple(Place(f"node-{number:030}", 1, 64, 1.0) for number in range(60))
    write(rankings, places=many)
    done = controller.submit(comment="dataset=s3://train/imagenet", features="f" * 200)
    assert done.prefer is not None
    assert done.prefer.count("|") < 16
    assert len(done.prefer) <= 512


def test_nobody_learns_of_what_is_not_theirs(controller: Controller, rankings: Path) -> None:
    write(rankings, readers=Readers(users=frozenset({1001}), groups=frozenset({50})))
    hint = {"comment": "dataset=s3://train/imagenet"}
    stranger = controller.submit(**hint)
    rankings.joinpath(str(file_name(IMAGENET))).unlink()
    nothing = controller.submit(**hint)
    assert stranger.admin_comment == nothing.admin_comment
    assert stranger.prefer is None
    write(rankings, readers=Readers(users=frozenset({1001}), groups=frozenset({50})))
    assert controller.submit(**hint, user_id=1001).prefer is not None
    assert controller.submit(**hint, group_id=50).prefer is not None
    assert controller.submit(**hint, user_id=0).prefer is not None
    assert controller.submit(**hint, user_id=100).prefer is None


# Few, so that a user's is often a group's, a part of another, or that of a place's CPUs.
NUMBERS = st.sampled_from([1, 10, 64, 100, 101, 110, 1000, 1001, 4294967294])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    users=st.frozensets(NUMBERS), groups=st.frozensets(NUMBERS), user=NUMBERS, group=NUMBERS,
    many=st.booleans(),
)  # fmt: skip
def test_whom_a_ranking_is_for_is_the_same_on_both_sides(
    controller: Controller, rankings: Path, users: frozenset[int], groups: frozenset[int],
    user: int, group: int, many: bool,
) -> None:  # fmt: skip
    others = frozenset(range(200_000, 200_900)) if many else frozenset()
    readers = Readers(users=users | others, groups=groups)
    write(rankings, readers=readers)
    done = controller.submit(
        comment="dataset=s3://train/imagenet", user_id=user, group_id=group, script="100 1000\n"
    )
    assert (done.prefer is not None) == readers.knows(user, group)


def test_datasets_named_together_have_a_ranking_of_their_own(
    controller: Controller, rankings: Path
) -> None:
    both = Ranking({"main": (Place("rack9", 9, 64, 1.0),)})
    write(rankings, others=(Entry(both, EVERYBODY, (LABELS,)),))
    together = "dataset=s3://train/imagenet,s3://train/labels"
    assert controller.submit(comment=together).prefer == "rack9"
    unknown = controller.submit(comment=together + ",s3://train/more")
    assert unknown.prefer == "[n4|n3|rack2|rack1]"
    assert unknown.said["dataset"].count(",") == 2
    assert controller.submit(comment="dataset=s3://train/imagenet").prefer == unknown.prefer
    write(rankings, others=(Entry(both, Readers(), (LABELS,)),))
    assert controller.submit(comment=together).prefer == unknown.prefer


def test_a_wait_is_bounded_by_slurm_itself(controller: Controller, rankings: Path) -> None:
    write(rankings)
    before = int(time.time())
    done = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5", features="gpu")
    assert done.begin_time is not None
    bound = float(done.begin_time)
    assert before + 300 <= bound <= time.time() + 300
    assert done.admin_comment is not None
    hint = hint_of(Job(id=1, state="pending", user="", admin_comment=done.admin_comment))
    assert hint is not None
    assert hint.wait is not None
    assert (hint.wait.bound, hint.wait.begin) == (bound, bound - 300)
    assert hint.wait.constraint == "gpu"
    assert hint.wait.places == "gpu&[n4|n3|rack2|rack1]"


def test_a_wait_begins_when_the_job_may(controller: Controller, rankings: Path) -> None:
    write(rankings)
    later = int(time.time()) + 1000
    hint = {"spank_job_env": [f"{OPTION}=s3://train/imagenet", f"{OPTION}_wait=5"]}
    done = controller.submit(**hint, begin_time=later)
    assert done.begin_time == str(later + 300)
    assert done.said["begin"] == str(later)


OTHER = "s3://train/other"
SAID: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "spank_job_env": (lambda name: f"{OPTION}={name}", lambda minutes: f"{OPTION}_wait={minutes}"),
    "comment": (lambda name: f"dataset={name}", lambda minutes: f"dataset-wait={minutes}"),
    "script": (lambda name: f"#DATASET {name}", lambda minutes: f"#DATASET-WAIT {minutes}"),
}
WAYS = sorted(SAID)


def fields(said: dict[str, list[str]]) -> dict[str, Any]:
    """A job's fields where these words are said in each."""
    found: dict[str, Any] = dict(said)
    if "comment" in said:
        found["comment"] = " ".join(said["comment"])
    if "script" in said:
        found["script"] = "\n".join(["#!/bin/sh", *said["script"], "true\n"])
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("named", WAYS)
@pytest.mark.parametrize("asked", WAYS)
def test_a_wait_is_found_wherever_it_is_said_and_wherever_the_dataset_is(
    controller: Controller, rankings: Path, named: str, asked: str, turned: bool
) -> None:
    write(rankings)
    said: dict[str, list[str]] = {}
    said.setdefault(named, []).append(SAID[named][0](IMAGENET.text))
    said.setdefault(asked, []).append(SAID[asked][1]("5"))
    if turned:
        said = {way: words[::-1] for way, words in said.items()}
    done = controller.submit(**fields(said))
    assert done.prefer is not None
    assert float(done.said["wait"]) - float(done.said["begin"]) == 300
    # What the daemon reads off the job is the same, whatever else its comment says.
    comment = "dataset=s3://train/other dataset-wait=9"
    hint = hint_of(
        Job(id=1, state="pending", user="", comment=comment, admin_comment=done.admin_comment or "")
    )
    assert hint is not None
    assert hint.wait is not None
    assert (hint.datasets, hint.wait.bound - hint.wait.begin) == ((IMAGENET,), 300)


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        (("spank_job_env", "comment", "script"), "spank_job_env"),
        (("comment", "script"), "comment"),
        (("spank_job_env", "script"), "spank_job_env"),
    ],
)
def test_of_what_is_said_twice_the_option_goes_first_and_the_script_last(
    controller: Controller, rankings: Path, ways: tuple[str, ...], expected: str
) -> None:
    write(rankings)
    said = {
        way: [
            SAID[way][0](IMAGENET.text if way == expected else OTHER),
            SAID[way][1]("5" if way == expected else "7"),
        ]
        for way in ways
    }
    done = controller.submit(**fields(said))
    assert done.said["dataset"] == IMAGENET.text
    assert float(done.said["wait"]) - float(done.said["begin"]) == 300


def test_a_wait_without_a_dataset_is_nothing(controller: Controller, rankings: Path) -> None:
    write(rankings)
    for way in WAYS:
        done = controller.submit(**fields({way: [SAID[way][1]("5")]}))
        assert (done.opened, done.prefer, done.admin_comment) == (0, None, None)


@pytest.mark.parametrize("minutes", ["0", "-1", "x", "", "1e9", "5;rm"])
def test_a_wait_that_is_none_is_none(controller: Controller, rankings: Path, minutes: str) -> None:
    write(rankings)
    hint = {"spank_job_env": [f"{OPTION}=s3://train/imagenet", f"{OPTION}_wait={minutes}"]}
    done = controller.submit(**hint)
    assert done.prefer is not None
    assert done.begin_time is None


def test_what_is_to_start_at_once_is_sent_to_its_data_all_the_same(
    controller: Controller, rankings: Path
) -> None:
    write(rankings)
    hint = {"comment": "dataset=s3://train/imagenet dataset-wait=5"}
    done = controller.submit(**hint, immediate=1)
    assert done.prefer == "[n4|n3|rack2|rack1]"
    assert (done.begin_time, done.said.get("wait")) == (None, None)
    whole = {"het_job_offset": 4294967294, "immediate": 0}
    assert controller.submit(**hint, **whole).begin_time is not None


def test_a_wait_has_an_end(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(comment=f"dataset=s3://train/imagenet dataset-wait={'9' * 30}")
    assert done.begin_time is not None
    assert float(done.begin_time) <= time.time() + 1440 * 60


def test_nothing_is_waited_for_without_places(controller: Controller, rankings: Path) -> None:
    done = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5")
    assert (done.begin_time, done.said["why"]) == (None, "no-ranking")


def test_what_others_wrote_into_the_comment_stays(controller: Controller, rankings: Path) -> None:
    write(rankings)
    done = controller.submit(comment="dataset=s3://train/imagenet", admin_comment="site: ok")
    assert done.admin_comment is not None
    assert done.admin_comment.startswith("site: ok feedrack did=preferred ")


def test_a_job_is_looked_at_once(controller: Controller, rankings: Path) -> None:
    write(rankings)
    first = controller.submit(comment="dataset=s3://train/imagenet dataset-wait=5")
    again = controller.submit(
        comment="dataset=s3://train/imagenet dataset-wait=5",
        admin_comment=first.admin_comment or "",
        prefer=first.prefer or "",
        begin_time=int(float(first.begin_time or 0)),
    )
    assert (again.prefer, again.admin_comment) == (first.prefer, first.admin_comment)
    assert float(again.begin_time or 0) == float(first.begin_time or 0)


def test_a_ranking_runs_out(controller: Controller, rankings: Path) -> None:
    hint = {"comment": "dataset=s3://train/imagenet"}
    write(rankings, valid_seconds=-2)
    assert controller.submit(**hint).said["why"] == "stale-ranking"
    write(rankings, valid_seconds=1_000_000)
    assert controller.submit(**hint).said["why"] == "stale-ranking"


def hostile(path: Path, kind: str) -> None:
    content = path.read_bytes()
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "endless":
            path.symlink_to("/dev/zero")
        case "dangling":
            path.symlink_to("/nowhere/at/all")
        case "huge":
            path.write_bytes(content + b"x" * MOST_BYTES)
        case "empty":
            path.touch()
        case "torn":
            path.write_bytes(content[: len(content) // 2])
        case "another":
            path.write_bytes(content.replace(b"imagenet", b"imagines"))
        case "binary":
            path.write_bytes(os.urandom(4000) + b"\nend\n")
        case "signs":
            path.write_bytes(content.replace(b"n4", b"n4|(`$)"))


@pytest.mark.parametrize(
    "kind",
    ["pipe", "folder", "endless", "dangling", "huge", "empty", "torn", "another", "binary"],
)
def test_whatever_stands_in_place_of_a_ranking_harms_nothing(
    controller: Controller, rankings: Path, kind: str
) -> None:
    hostile(write(rankings), kind)
    done = controller.submit(comment="dataset=s3://train/imagenet")
    assert (done.code, done.prefer, done.said["why"]) == (0, None, "no-ranking")


def test_a_place_that_slurm_could_not_read_is_left_out(
    controller: Controller, rankings: Path
) -> None:
    hostile(write(rankings), "signs")
    done = controller.submit(comment="dataset=s3://train/imagenet")
    assert done.prefer is None or not set(done.prefer) & set("(`$)")


def test_a_field_that_is_no_text_leaves_the_job_as_it_was(
    controller: Controller, rankings: Path
) -> None:
    write(rankings)
    done = controller.submit(comment={"a": 1}, script=17)
    assert (done.code, done.errors, done.prefer, done.admin_comment) == (0, 1, None, None)


# Hints of any bytes, near those that mean something.
PIECES = st.sampled_from(
    [
        b"s3://",
        b"train",
        b"/",
        b"//",
        b"imagenet",
        b",",
        b".",
        b"..",
        b"-",
        b"%2F",
        b"$(id)",
        b"`id`",
    ]
)
HINT = st.lists(PIECES | st.binary(min_size=1, max_size=6), max_size=8).map(b"".join)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(raw=HINT.filter(lambda raw: b"\0" not in raw))
def test_both_sides_take_the_same_for_a_hint(
    controller: Controller, rankings: Path, raw: bytes
) -> None:
    done = controller.submit(spank_job_env=[OPTION.encode() + b"=" + raw])
    text = raw.decode("utf-8", "surrogateescape")
    assert done.code == 0
    assert done.prefer is None
    if not raw:
        assert done.admin_comment is None
        return
    try:
        datasets = parse_hint(text)
    except BadHint:
        assert done.said == {"did": "nothing", "why": "bad-hint"}
        assert done.opened == 0
        return
    said = decode_value(done.said["dataset"])
    assert said == ",".join(each.text for each in datasets)
    name = file_name(datasets[0])
    if name is None:
        assert done.opened == 0
    else:
        # One file, in the folder, by the name that the other side gives it.
        assert (done.opened, done.path) == (1, f"{rankings}/{name}")
        assert "/" not in name


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=300), cut=st.integers(0, 400))
def test_a_ranking_of_any_bytes_harms_nothing(
    controller: Controller, rankings: Path, content: bytes, cut: int
) -> None:
    path = write(rankings)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + content + whole[cut:])
    done = controller.submit(comment="dataset=s3://train/imagenet")
    assert done.code == 0
    if done.prefer is not None:
        assert len(done.prefer) <= 512
        assert done.prefer.count("|") < 16
        assert not set(done.prefer) - set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-[]|"
        )
