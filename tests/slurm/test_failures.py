"""Never in the way: whatever is down, slow, lying or hostile, each job is taken and starts as if we
were not there, and the controller lives and answers."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_plugin.dataset import file_name, parse_dataset
from tests.slurm.lying import LyingGateway, lying_gateway
from tests.slurm.placed import Landed, Placed
from tests.waiting import wait_until

IMAGES = "s3://train/images"
HINT = f"--dataset={IMAGES}"
SOON_SECONDS = 20.0
_VALID_SECONDS = 8.0
_FILE = str(file_name(parse_dataset(IMAGES)))


@pytest.fixture(scope="module")
def cluster(slurm_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    """n4 holds the images. A ranking is soon stale."""
    with Placed(
        tmp_path_factory.mktemp("placed"),
        gateways=("n4",),
        affinity={
            "warming": {"enabled": False},
            "ranking": {"valid_seconds": _VALID_SECONDS},
            "gateways": {"timeout_seconds": 2.0},
        },
    ) as placed:
        placed.put(IMAGES)
        placed.warm(IMAGES, "n4")
        yield placed


@pytest.fixture
def failing(placed: Placed) -> Iterator[Placed]:
    """All is well before."""
    placed.ensure_daemon()
    wait_until(lambda: _seconds_left(placed) > 2, f"there is a ranking\n{placed.log[-1500:]}")
    placed.await_first(IMAGES, "n4")
    yield placed
    assert _answers_at_once(placed)


@pytest.fixture
def folder(failing: Placed) -> Iterator[Path]:
    """The folder of the rankings, whose daemon has ended; there is another one afterwards."""
    failing.end_daemon()
    yield failing.rankings
    failing.end_daemon()
    if failing.rankings.is_dir() and not failing.rankings.is_symlink():
        shutil.rmtree(failing.rankings)
    else:
        failing.rankings.unlink(missing_ok=True)
    failing.rankings.mkdir(mode=0o700)
    failing.start_daemon()


# Those whom the rankings are made of


@contextlib.contextmanager
def _no_redis(placed: Placed) -> Iterator[None]:
    placed.fleet.stop_redis(saving=True)
    try:
        yield
    finally:
        placed.fleet.start_redis(empty=False)


@contextlib.contextmanager
def _slow_redis(placed: Placed) -> Iterator[None]:
    """Slower than the gateways have patience for."""
    placed.fleet.slow_redis(6.0)
    try:
        yield
    finally:
        placed.fleet.slow_redis(0.0)


@contextlib.contextmanager
def _no_gateway(placed: Placed) -> Iterator[None]:
    placed.fleet.kill(0)
    try:
        yield
    finally:
        placed.fleet.restart(0)


@contextlib.contextmanager
def _slow_gateway(placed: Placed) -> Iterator[None]:
    placed.fleet.freeze(0)
    try:
        yield
    finally:
        placed.fleet.thaw(0)


@contextlib.contextmanager
def _no_daemon(placed: Placed) -> Iterator[None]:
    placed.end_daemon(signal.SIGKILL)
    try:
        yield
    finally:
        placed.start_daemon()


@contextlib.contextmanager
def _daemon_stands_still(placed: Placed) -> Iterator[None]:
    placed.signal_daemon(signal.SIGSTOP)
    try:
        yield
    finally:
        placed.signal_daemon(signal.SIGCONT)


@pytest.mark.parametrize(
    "broken",
    [_no_redis, _slow_redis, _no_gateway, _slow_gateway, _no_daemon, _daemon_stands_still],
    ids=lambda each: each.__name__.strip("_"),
)
def test_without_it_jobs_start_as_before_and_with_it_again_they_follow(
    failing: Placed, broken: Callable[[Placed], contextlib.AbstractContextManager[None]]
) -> None:
    with broken(failing):
        _starts_at_once(failing)
        # What was under way when it broke may still write one.
        wait_until(
            lambda: not failing.ranking(IMAGES) or _seconds_left(failing) < -3,
            "the ranking is not made anew from nothing",
        )
        job = _starts_at_once(failing)
        assert job.said["did"] == "nothing"
        assert job.said["why"] in ("stale-ranking", "no-ranking")
        assert _answers_at_once(failing)
    wait_until(lambda: not _is_stale(failing), f"there is a ranking\n{failing.log[-1500:]}")
    failing.await_first(IMAGES, "n4")
    assert failing.place(HINT).nodes == ["n4"]


# Redis that lies, though it answers

_GARBAGE: dict[str, bytes] = {
    "words for numbers": b"much",
    "less than nothing": b"-9",
    "more than there is": b"9" * 400,
    "no text": b"\xff\x00\n]|",
    "nothing": b"",
}


@pytest.mark.parametrize("garbage", [*_GARBAGE, "other kinds", "no keys"])
def test_whatever_redis_says_jobs_start_and_follow_again_once_it_is_well(
    failing: Placed, garbage: str
) -> None:
    started = failing.daemon
    with redis.Redis.from_url(failing.fleet.redis.url) as client:
        for key in client.scan_iter():
            _spoil(client, key, garbage)
    before = failing.ranking(IMAGES)
    _starts_at_once(failing)
    wait_until(
        lambda: failing.ranking(IMAGES) != before or _is_stale(failing),
        f"something comes of {garbage}",
    )
    _starts_at_once(failing)
    _rankings_are_well(failing, garbage)
    assert failing.daemon == started
    assert failing.daemon_runs, failing.log[-3000:]
    # An operator who starts it anew, empty, loses nothing.
    failing.fleet.stop_redis()
    failing.fleet.start_redis()
    failing.fleet.await_members()
    wait_until(lambda: not _is_stale(failing), f"there is a ranking\n{failing.log[-1500:]}")
    failing.await_first(IMAGES, "n4")
    assert failing.place(HINT).nodes == ["n4"]


def _spoil(client: "redis.Redis", key: bytes, garbage: str) -> None:
    """Puts garbage where numbers and names were: in what a key holds, or in its place."""
    kind = client.type(key)
    if garbage == "no keys":
        client.delete(key)
    elif garbage == "other kinds":
        client.delete(key)
        if kind == b"list":
            client.set(key, b"no list")
        else:
            client.rpush(key, b"a list")
    elif kind == b"hash":
        for field in client.hkeys(key):
            client.hset(key, field, _GARBAGE[garbage])
    elif kind == b"string":
        client.set(key, _GARBAGE[garbage], keepttl=True)
    elif kind == b"set":
        client.sadd(key, _GARBAGE[garbage])
    elif kind == b"zset":
        client.zadd(key, {_GARBAGE[garbage]: 0})


# Gateways that lie

_MEMBERS = b'"members":[{"id":"n1","rack":"rack2","state":"serving"}]'
_LIES: dict[str, tuple[bytes | None, int]] = {
    "nothing": (b"", 200),
    "no JSON": (b"<html>", 200),
    "a list": (b"[]", 200),
    "words for numbers": (
        b'{%s,"datasets":[{"dataset":"s3://train/images","nodes":{"n1":"much"}}]}' % _MEMBERS, 200,
    ),
    "less than nothing": (
        b'{%s,"datasets":[{"dataset":"s3://train/images","nodes":{"n1":-1}}]}' % _MEMBERS, 200,
    ),
    "more than there is": (
        b'{%s,"datasets":[{"dataset":"s3://train/images","nodes":{"n1":1%s}}]}'
        % (_MEMBERS, b"0" * 400), 200,
    ),
    "no number": (
        b'{%s,"datasets":[{"dataset":"s3://train/images","nodes":{"n1":NaN}}]}' % _MEMBERS, 200,
    ),
    "numbers for names": (b'{"members":[{"id":4,"rack":null}],"datasets":[{"dataset":1}]}', 200),
    "names that are lines": (
        rb'{"members":[{"id":"n1\nend\n","rack":"rack2\n[main] 9\nn1 9 9 -"}],"datasets":'
        rb'[{"dataset":"s3://train/images\nusers *","nodes":{"n1\nend\n":5}},'
        rb'{"dataset":"s3://train/../../../etc","nodes":{"n1\nend\n":5}},'
        rb'{"dataset":"s3://train/\"; touch /tmp/feedrack-was-here; \"","nodes":{"n1":5}}]}', 200,
    ),
    "expressions for racks": (
        b'{"members":[{"id":"n1|n2&[n3*1]","rack":"rack2|rack1"}],"datasets":'
        b'[{"dataset":"s3://train/images","nodes":{"n1|n2&[n3*1]":5}}]}', 200,
    ),
    "readers that are none": (
        b'{%s,"datasets":[{"dataset":"s3://train/images","nodes":{"n1":5},"readers":'
        b'["\\u0000","../..","@","*\\n*"]}]}' % _MEMBERS, 200,
    ),
    "a page that follows itself": (
        b'{%s,"next":"s3://train/images","datasets":[]}' % _MEMBERS, 200,
    ),
    "depth": (b"[" * 1_000_000, 200),
    "64 MiB and more": (b" " * (64 * 1024**2 + 1), 200),
    "no end": (None, 200),
    "an error": (b"out of order", 500),
    "elsewhere": (b"", 302),
    "not known": (b"", 404),
}  # fmt: skip

_SIZE = 2**60
# What could all be true, and is not; and which place comes first for it.
_PLAUSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "others hold it": (
        {
            "members": [{"id": "n2", "rack": "rack1"}, {"id": "n1", "rack": "rack2"}],
            "datasets": [{"nodes": {"n2": _SIZE, "n1": 1}}],
        },
        "n2",
    ),
    "all of them hold all that there can be": (
        {
            "members": [{"id": f"n{number}", "rack": "rack1"} for number in (1, 2, 3)],
            "datasets": [{"nodes": dict.fromkeys(("n1", "n2", "n3"), _SIZE)}],
        },
        "n2",
    ),
    "a node for a rack": (
        {
            "members": [{"id": "n2", "rack": "n3"}],
            "datasets": [{"nodes": {"n2": _SIZE}}],
        },
        "n2",
    ),
    "all nodes for a rack": (
        {
            "members": [{"id": "n9", "rack": "feedrack"}],
            "datasets": [{"nodes": {"n9": _SIZE}}],
        },
        "feedrack",
    ),
    "one node in two racks": (
        {
            "members": [{"id": "n2", "rack": "rack1"}, {"id": "n2", "rack": "rack2"}],
            "datasets": [{"nodes": {"n2": 5}}, {"nodes": {"n2": _SIZE}}],
        },
        "n2",
    ),
}


@pytest.fixture(scope="module")
def liar() -> Iterator[LyingGateway]:
    with lying_gateway() as gateway:
        yield gateway


@pytest.fixture
def misled(failing: Placed, liar: LyingGateway) -> Iterator[Placed]:
    """One daemon, that hears the liar alone."""
    failing.end_daemon()
    failing.start_daemon(gateways={"admin_urls": [liar.url]})
    started = failing.daemon
    yield failing
    assert failing.daemon == started
    assert started.memory_info().rss < 512 * 1024**2
    failing.end_daemon()


@pytest.mark.timeout(300)
def test_a_gateway_that_lies_breaks_nothing(misled: Placed, liar: LyingGateway) -> None:
    for name, (lie, status) in _LIES.items():
        liar.tell(lie, status)
        wait_until(lambda: liar.asked >= 2, f"somebody listens to {name}\n{misled.log[-1500:]}")
        assert misled.daemon_runs, f"{name}\n{misled.log[-3000:]}"
        _rankings_are_well(misled, name)
        _starts_at_once(misled)
    assert not Path("/tmp/feedrack-was-here").exists()


@pytest.mark.parametrize("lie", _PLAUSIBLE)
def test_a_lie_that_is_believed_sends_jobs_elsewhere_and_keeps_none_waiting(
    misled: Placed, liar: LyingGateway, lie: str
) -> None:
    said, first = _PLAUSIBLE[lie]
    liar.tell(_document(said))
    misled.await_first(IMAGES, first)
    _rankings_are_well(misled, lie)
    job = _starts_at_once(misled)
    assert job.said["did"] == "preferred"
    assert _starts_at_once(misled, "-N2").seconds < SOON_SECONDS
    assert _starts_at_once(misled, "-C", "rack2").nodes[0] in ("n3", "n4")
    misled.slurm.drain("n2")
    misled.slurm.drain("n3")
    assert _starts_at_once(misled).nodes[0] in ("n1", "n4")


def _document(said: Mapping[str, Any]) -> bytes:
    """What `/v1/members` and `/v1/datasets` answer, both with all of it."""
    datasets = [{"dataset": IMAGES, "readers": ["*"]} | each for each in said["datasets"]]
    members = [{"state": "serving"} | each for each in said["members"]]
    return json.dumps({"members": members, "datasets": datasets}).encode()


# A folder of rankings that is not as we left it

_HEAD = "feedrack-ranking 1 {soon} no main feedrack\ndataset s3://train/images\nusers *\ngroups\n"


def _write(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(text.replace("{soon}", str(int(time.time()) + 60)).encode())

    return write


def _link(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _huge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(8 * 1024**3)


def _gone(path: Path) -> None:
    shutil.rmtree(path.parent)


def _a_file_for_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("no folder")


def _a_loop_for_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to(path.parent)


def _nobodys(path: Path) -> None:
    path.chmod(0)
    path.parent.chmod(0)


_HOSTILE: dict[str, Callable[[Path], None]] = {
    "no folder": _gone,
    "a file for the folder": _a_file_for_the_folder,
    "a loop for the folder": _a_loop_for_the_folder,
    "no file": Path.unlink,
    "a pipe": _fifo,
    "a directory": _directory,
    "zeros without end": _link("/dev/zero"),
    "a terminal": _link("/dev/tty"),
    "a file of the system's": _link("/etc/passwd"),
    "a file of 8 GiB": _huge,
    "an empty file": _write(""),
    "no end": _write(_HEAD + "[main] 4\nn3 1 2 rack2\n"),
    "half a head": _write("feedrack-ranking 1\nend\n"),
    "another version": _write(_HEAD.replace("g 1", "g 2") + "[main] 4\nn3 1 2 -\nend\n"),
    "another dataset": _write(_HEAD.replace("images", "labels") + "[main] 4\nn3 1 2 -\nend\n"),
    "stale": _write(_HEAD.replace("{soon}", "1000000000") + "[main] 4\nn3 1 2 -\nend\n"),
    "good for ever": _write(_HEAD.replace("{soon}", "9" * 18) + "[main] 4\nn3 1 2 -\nend\n"),
    "no numbers": _write(_HEAD + "[main] x\nn3 y z -\nend\n"),
    "no places": _write(_HEAD + "[main] 4\nend\n"),
    "places that are expressions": _write(_HEAD + "[main] 4\nn3|n2&n1 1 2 -\n[a*9] 1 2 -\nend\n"),
    "zeros": _write("\0" * 4096),
    "lines alone": _write("\n" * 16_000 + "end\n"),
    "brackets": _write("[" * 16_000 + "\nend\n"),
}  # fmt: skip


@pytest.mark.parametrize("how", _HOSTILE)
def test_whatever_lies_in_the_folder_jobs_start(failing: Placed, folder: Path, how: str) -> None:
    _HOSTILE[how](folder / _FILE)
    job = _starts_at_once(failing)
    assert (job.said["did"], job.said["dataset"]) == ("nothing", IMAGES)


def test_a_folder_that_is_nobodys_to_read_keeps_no_job_waiting(
    failing: Placed, folder: Path
) -> None:
    """The controller is root's here, who may read it all the same."""
    _nobodys(folder / _FILE)
    _starts_at_once(failing)


def test_of_a_thousand_places_sixteen_are_preferred(failing: Placed, folder: Path) -> None:
    places = "".join(f"node{number} 1 2 -\n" for number in range(1000))
    _write(f"{_HEAD}[main] 4\n{places}{places}end\n")(folder / _FILE)
    assert _starts_at_once(failing).said["why"] == "no-ranking"
    _write(f"{_HEAD}[main] 4\n{places}end\n")(folder / _FILE)
    job = _starts_at_once(failing)
    assert job.said["did"] == "preferred"
    assert job.said["prefer"].count("|") == 15


def test_of_long_names_as_many_are_preferred_as_slurm_takes(failing: Placed, folder: Path) -> None:
    places = "".join(f"{'n' * 60}{number:03} 1 2 -\n" for number in range(16))
    _write(f"{_HEAD}[main] 4\n{places}end\n")(folder / _FILE)
    job = _starts_at_once(failing)
    assert 400 < len(job.said["prefer"]) <= 512


def test_a_daemon_mends_what_it_finds_in_its_folder(failing: Placed, folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_text("keep")
    _link(str(outside))(folder / _FILE)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(outside)
    failing.start_daemon()
    failing.await_first(IMAGES, "n4")
    wait_until(lambda: not (folder / "pipe").exists(), "it is cleared away")
    assert not (folder / _FILE).is_symlink()
    assert not (folder / "folder").exists()
    assert not (folder / "link").is_symlink()
    assert outside.read_text() == "keep"
    assert failing.place(HINT).nodes == ["n4"]


def test_a_full_folder_ends_no_daemon(failing: Placed, folder: Path, tmp_path: Path) -> None:
    full = tmp_path / "rankings"
    full.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", str(full)]
    subprocess.run(mount, check=True)
    try:
        (full / ".full").write_bytes(b"x" * 4096)
        (full / ".full").rename(full / "full")
        failing.start_daemon(folders={"rankings": str(full)})
        _until_said(failing, "No space left on device")
        assert failing.daemon_runs
        _starts_at_once(failing)
    finally:
        failing.end_daemon()
        subprocess.run(["umount", str(full)], check=True)


def test_a_folder_that_others_may_write_to_is_not_written_to(failing: Placed, folder: Path) -> None:
    (folder / _FILE).unlink()
    failing.start_daemon()
    failing.await_first(IMAGES, "n4")
    folder.chmod(0o777)
    _until_said(failing, "others may look into it, or write to it")
    wait_until(lambda: _is_stale(failing), "it is not written to any more")
    assert _starts_at_once(failing).said["did"] == "nothing"
    folder.chmod(0o700)
    failing.await_first(IMAGES, "n4")
    wait_until(lambda: not _is_stale(failing), "it is written to again")


# Hints of any bytes

_WORDS = st.sampled_from(
    [
        "s3://", "train", "/", "..", "../", "images", ",", "'", '"', "\\", "`touch was-here`",
        "$(touch was-here)", ";touch was-here;", "%2e%2e", "%", "%00", "|", "&", "[", "]", "*", "=",
        " dataset=", "dataset-wait=", "99999999999999999999", "\n", "\r", "\t", "\x7f", "é",
    ]
)  # fmt: skip
_BYTES = st.one_of(
    st.lists(st.one_of(_WORDS, st.text(max_size=4)), max_size=12).map(
        lambda words: "".join(words).encode("utf-8", "surrogatepass")
    ),
    st.binary(max_size=40),
    st.binary(min_size=1, max_size=4).map(lambda some: b"s3://train/" + some),
    st.binary(min_size=1, max_size=4).map(lambda some: some * 250),
).map(lambda raw: raw.replace(b"\0", b"\1"))
_WAYS = st.sampled_from(["option", "comment", "line"])


@pytest.mark.timeout(300)
@given(raw=_BYTES, way=_WAYS)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_hint_of_any_bytes_harms_nothing(hinted: Placed, raw: bytes, way: str) -> None:
    text = os.fsdecode(raw)
    if way == "option":
        arguments, script = [f"--dataset={text}"], "#!/bin/sh\ntrue\n"
    elif way == "comment":
        arguments, script = [f"--comment=dataset={text}"], "#!/bin/sh\ntrue\n"
    else:
        line = re.sub(r"[\r\n]", " ", text)
        arguments, script = [], f"#!/bin/sh\n#DATASET {line}\ntrue\n"
    done = hinted.slurm.run_raw("sbatch", "--parsable", "-H", *arguments, input=os.fsencode(script))
    if done.returncode != 0:
        # What an option says is looked at where it is typed, and then it is not submitted at all.
        # A comment of more than 1,024 bytes is refused by Slurm itself.
        if way == "comment" and len(raw) > 1000:
            return
        assert way == "option", done
        assert b"feedrack: --dataset: " in done.stderr, done
        return
    said = hinted.slurm.run_raw("scontrol", "show", "job", done.stdout.decode().strip()).stdout
    comment = re.search(rb"^   AdminComment=(.*)$", said, re.MULTILINE)
    if comment is not None:
        assert re.fullmatch(rb"feedrack( [a-z]+=[A-Za-z0-9._/:,\[\]|&*@+%-]*)+", comment[1].strip())


@pytest.fixture
def hinted(failing: Placed) -> Iterator[Placed]:
    """All hints go to one; whatever they were, the daemon and the controller live, and nothing was
    run or written."""
    before = _tree(failing)
    started = failing.daemon
    yield failing
    assert failing.daemon == started
    assert failing.daemon_runs, failing.log[-3000:]
    wait_until(lambda: not _is_stale(failing), f"the ranking is fresh\n{failing.log[-3000:]}")
    assert _tree(failing) == before
    assert not list(failing.slurm.work.rglob("was-here"))


def test_a_path_in_a_hint_leads_nowhere(failing: Placed) -> None:
    """A ranking beside the folder, of a name that would lead there."""
    outside = failing.site / "images"
    try:
        for name in ("s3://train/../images", "s3://../images", "s3://train/..%2Fimages"):
            text = f"{_HEAD}[main] 4\nn3 1 2 -\nend\n".replace(IMAGES, name)
            _write(text)(outside)
            job = failing.place("--comment", f"dataset={name}")
            assert job.said["did"] == "nothing"
    finally:
        outside.unlink(missing_ok=True)


# Whom it is told


def test_a_user_learns_nothing_of_what_only_others_may_read(failing: Placed) -> None:
    failing.end_daemon()
    failing.start_daemon(readers={"demo": ["daemon"]})
    try:
        wait_until(lambda: "\nusers 0 1\n" in failing.ranking(IMAGES), "somebody is named")
        hidden = _starts_at_once(failing, "--export=NONE", user="nobody")
        unknown = failing.place("--export=NONE", "--dataset=s3://train/unheard-of", user="nobody")
        assert {**hidden.said, "dataset": ""} == {**unknown.said, "dataset": ""}
        assert failing.slurm.job(hidden.id)["Features"] == "(null)"
        assert failing.place(HINT, "--export=NONE", user="daemon").nodes == ["n4"]
        for command in (("ls", str(failing.rankings)), ("cat", f"{failing.rankings}/{_FILE}")):
            done = failing.slurm.run(*command, user="nobody", check=False)
            assert (done.returncode != 0, done.stdout) == (True, "")
    finally:
        failing.end_daemon()


def _starts_at_once(failing: Placed, *arguments: str, user: str | None = None) -> Landed:
    """A job is taken, and starts."""
    job = failing.place(HINT, *arguments, user=user)
    assert job.seconds < SOON_SECONDS
    return job


def _answers_at_once(failing: Placed) -> bool:
    """Within a second; this machine may have other things to do, but not three times."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        failing.slurm.run("scontrol", "ping")
        took.append(time.monotonic() - began)
    return failing.slurm.alive() and min(took) < 1.0


def _is_stale(failing: Placed) -> bool:
    return _seconds_left(failing) < 0


def _seconds_left(failing: Placed) -> int:
    """For which the ranking is good; the controller counts in whole seconds."""
    found = re.match(r"feedrack-ranking 1 (\d+) ", failing.ranking(IMAGES))
    return int(found[1]) - int(time.time()) if found is not None else -1


def _until_said(failing: Placed, what: str) -> None:
    wait_until(lambda: what in failing.log, f"it says {what}\n{failing.log[-2000:]}")


def _rankings_are_well(failing: Placed, lie: str) -> None:
    """Each file is one of ours, whatever it was made of."""
    for path in failing.rankings.iterdir():
        if path.name.startswith(".new-"):
            continue
        assert re.fullmatch(r"[A-Za-z0-9._%-]{1,200}", path.name), (lie, path.name)
        with contextlib.suppress(FileNotFoundError):
            text = path.read_text()
            assert re.fullmatch(
                r"feedrack-ranking 1 \d+ (yes|no) main feedrack\ndataset (s3://[^\s\"',]+)\n"
                r"users [0-9 *]+\ngroups[0-9 ]*\n"
                r"(\[(main|\*)\] \d\n([A-Za-z0-9_.-]+ \d \d [A-Za-z0-9_.-]+\n)*)*end\n",
                text,
            ), (lie, text)


def _tree(failing: Placed) -> set[str]:
    """What lies beside what the daemon and Slurm write all the time."""
    found = {str(each) for each in failing.site.iterdir()}
    return found | {str(each) for each in failing.slurm.etc.iterdir()}
