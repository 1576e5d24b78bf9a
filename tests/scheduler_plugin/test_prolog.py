"""The prolog's program: one small file, or nothing; always 0, and always soon."""

import os
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

_SOURCE = Path(__file__).parents[2] / "scheduler_plugin" / "site" / "feedrack_prolog.c"
# Of the program's own two seconds; a machine that is busy takes longer.
_HANGS_SECONDS = 20
_NODES_BYTES = 64 * 1024
_WAITING_MOST = 10_000


class Prolog:
    """The program, built for a folder that a test may do anything to."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "requests"
        self.program = base / "prolog"
        subprocess.run(
            ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror",
             f'-DFEEDRACK_REQUESTS="{self.folder}"', "-o", self.program, _SOURCE],
            check=True,
        )  # fmt: skip

    def run(self, job: str | None = "4711", nodes: str | None = "n[1-2]") -> None:
        given = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes}
        self.run_in({key: value for key, value in given.items() if value is not None})

    def run_in(self, environ: Mapping[str, str] | Mapping[bytes, bytes]) -> None:
        done = subprocess.run(
            [self.program], env=environ, capture_output=True, timeout=_HANGS_SECONDS
        )
        assert done.returncode == 0
        assert done.stdout == b""
        assert done.stderr == b""

    def held(self) -> dict[str, bytes]:
        return {
            each.name: each.read_bytes() if each.is_file() else b""
            for each in self.folder.iterdir()
        }


@pytest.fixture(scope="module")
def built() -> Iterator[Prolog]:
    required = "slurm" in os.environ.get("REQUIRE", "").split(",")
    if shutil.which("gcc") is None and not required:
        pytest.skip("gcc is not installed")
    with tempfile.TemporaryDirectory(prefix="prolog-") as base:
        yield Prolog(Path(base))


@pytest.fixture
def prolog(built: Prolog) -> Iterator[Prolog]:
    built.folder.mkdir(mode=0o700)
    yield built
    if built.folder.is_dir() and not built.folder.is_symlink():
        shutil.rmtree(built.folder)
    else:
        built.folder.unlink(missing_ok=True)


def test_it_leaves_the_jobs_id_and_nodes(prolog: Prolog) -> None:
    prolog.run("4711", "n[1-2],gpu7")
    assert prolog.held() == {"4711": b"4711\nn[1-2],gpu7\n"}
    assert stat.S_IMODE((prolog.folder / "4711").stat().st_mode) == 0o600


def test_a_job_that_is_requeued_says_its_new_nodes(prolog: Prolog) -> None:
    prolog.run("4711", "n1")
    prolog.run("4711", "n2")
    assert prolog.held() == {"4711": b"4711\nn2\n"}


def test_what_a_killed_run_left_is_in_nobodys_way(prolog: Prolog) -> None:
    (prolog.folder / ".4711").write_text("47")
    prolog.run("4711", "n1")
    assert prolog.held() == {"4711": b"4711\nn1\n"}


@pytest.mark.parametrize(
    "job",
    ["", " 1", "1 ", "-1", "+1", "0x1", "1.2", "1/2", "../1", "/etc/1", ".", "..", "1\n", "1" * 21,
     "1" * 5000, "\u0661", "1_2", "%d", "$(id)"],
)  # fmt: skip
def test_an_id_that_is_none_leaves_nothing(prolog: Prolog, job: str) -> None:
    prolog.run(job)
    assert prolog.held() == {}


@pytest.mark.parametrize("nodes", ["", "n1\nn2", "n 1", "n\t", "n\x7f", "n\x01", "n\u00e9"])
def test_nodes_that_are_none_leave_nothing(prolog: Prolog, nodes: str) -> None:
    prolog.run("4711", nodes)
    assert prolog.held() == {}


def test_nodes_lists_are_taken_up_to_64_kib(prolog: Prolog) -> None:
    prolog.run("1", "n" * _NODES_BYTES)
    prolog.run("2", "n" * (_NODES_BYTES + 1))
    assert prolog.held() == {"1": b"1\n" + b"n" * _NODES_BYTES + b"\n"}


@pytest.mark.parametrize(("job", "nodes"), [(None, "n1"), ("1", None), (None, None)])
def test_an_environment_that_lacks_something_leaves_nothing(
    prolog: Prolog, job: str | None, nodes: str | None
) -> None:
    prolog.run(job, nodes)
    assert prolog.held() == {}


_ANY = st.binary(max_size=40).map(lambda value: value.replace(b"\0", b""))


@given(
    job=_ANY | st.from_regex(rb"[0-9]{1,22}", fullmatch=True),
    nodes=_ANY | st.from_regex(rb"[a-z\[\],0-9-]{1,30}", fullmatch=True),
)
def test_any_bytes_leave_a_file_of_that_id_or_nothing(
    built: Prolog, job: bytes, nodes: bytes
) -> None:
    built.folder.mkdir(mode=0o700)
    try:
        built.run_in({b"SLURM_JOB_ID": job, b"SLURM_JOB_NODELIST": nodes})
        if job.isdigit() and len(job) <= 20 and nodes and all(33 <= each < 127 for each in nodes):
            assert built.held() == {job.decode(): job + b"\n" + nodes + b"\n"}
        else:
            assert built.held() == {}
    finally:
        shutil.rmtree(built.folder)


def test_where_there_is_no_folder_none_is_made(prolog: Prolog) -> None:
    prolog.folder.rmdir()
    prolog.run()
    assert not prolog.folder.exists()


def test_a_link_in_the_folders_place_is_not_followed(prolog: Prolog, tmp_path: Path) -> None:
    prolog.folder.rmdir()
    prolog.folder.symlink_to(tmp_path)
    prolog.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_a_file_or_a_pipe_in_the_folders_place_is_left_alone(prolog: Prolog, make: object) -> None:
    assert callable(make)
    prolog.folder.rmdir()
    make(prolog.folder)
    prolog.run()
    assert not prolog.folder.is_dir()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_into_is_not_trusted(prolog: Prolog, mode: int) -> None:
    prolog.folder.chmod(mode)
    prolog.run()
    assert prolog.held() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="wants root")
def test_a_folder_of_somebody_else_is_not_trusted(prolog: Prolog) -> None:
    os.chown(prolog.folder, 12345, 0)
    prolog.run()
    assert prolog.held() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="wants root")
def test_slurm_user_need_not_be_root(prolog: Prolog) -> None:
    prolog.program.parent.chmod(0o755)
    os.chown(prolog.folder, 54321, 54321)
    subprocess.run(
        [prolog.program],
        env={"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n1"},
        user=54321,
        group=54321,
        extra_groups=[],
        check=True,
        timeout=_HANGS_SECONDS,
    )
    assert prolog.held() == {"4711": b"4711\nn1\n"}


def test_a_pipe_in_the_requests_place_is_replaced_and_never_waited_for(prolog: Prolog) -> None:
    os.mkfifo(prolog.folder / "4711")
    os.mkfifo(prolog.folder / ".4711")
    prolog.run("4711", "n1")
    assert prolog.held() == {"4711": b"4711\nn1\n"}


def test_a_link_in_the_requests_place_is_replaced_and_not_written_through(
    prolog: Prolog, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (prolog.folder / "4711").symlink_to(theirs)
    (prolog.folder / ".4711").symlink_to(theirs)
    prolog.run("4711", "n1")
    assert prolog.held() == {"4711": b"4711\nn1\n"}
    assert theirs.read_text() == "theirs"


def test_a_folder_in_the_requests_place_stays_and_nothing_is_left_beside_it(
    prolog: Prolog,
) -> None:
    (prolog.folder / "4711").mkdir()
    prolog.run("4711")
    assert prolog.held() == {"4711": b""}


def test_requests_that_nobody_fetches_are_bounded(prolog: Prolog) -> None:
    for number in range(_WAITING_MOST):
        (prolog.folder / f"{number}").touch()
    prolog.run("4711000")
    assert len(prolog.held()) == _WAITING_MOST


def test_a_limit_on_files_leaves_no_half_of_one(prolog: Prolog) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = subprocess.run(
        [prolog.program],
        env={"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n" * 5000},
        preexec_fn=limited,
        timeout=_HANGS_SECONDS,
    )
    assert done.returncode == 0
    assert prolog.held() == {}


def test_a_limit_on_processes_costs_the_request_alone(prolog: Prolog) -> None:
    if os.geteuid() != 0:
        pytest.skip("wants root")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.setuid(54321)

    Path(prolog.program).parent.chmod(0o755)
    os.chown(prolog.folder, 54321, 0)
    done = subprocess.run(
        [prolog.program],
        env={"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"},
        preexec_fn=limited,
        timeout=_HANGS_SECONDS,
    )
    assert done.returncode == 0
    assert prolog.held() == {}


# In a mount namespace of its own: what is mounted is gone with the shell.
_FULL = """
mount -t tmpfs -o size=16k,mode=700 tmpfs "$FOLDER" || exit 77
head -c 100000 /dev/zero >"$FOLDER/fill" 2>/dev/null
SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 "$PROGRAM"
echo "status $?"
ls -A "$FOLDER"
"""
_FROZEN = """
truncate -s 8M "$FOLDER.image" && mkfs.ext4 -q "$FOLDER.image" || exit 77
mount -o loop "$FOLDER.image" "$FOLDER" || exit 77
trap 'fsfreeze --unfreeze "$FOLDER"; umount "$FOLDER"' EXIT
chmod 700 "$FOLDER"
fsfreeze --freeze "$FOLDER" || exit 77
SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 "$PROGRAM"
echo "status $?"
"""


def _in_a_namespace(prolog: Prolog, script: str) -> list[str]:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("wants root and unshare")
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script],
        env={**os.environ, "FOLDER": str(prolog.folder), "PROGRAM": str(prolog.program)},
        capture_output=True,
        text=True,
        timeout=_HANGS_SECONDS,
    )
    if done.returncode == 77:
        pytest.skip(f"no such disk here: {done.stderr}")
    return done.stdout.split("\n")[:-1]


def test_a_full_disk_costs_the_request_alone(prolog: Prolog) -> None:
    assert _in_a_namespace(prolog, _FULL) == ["status 0", "fill"]


def test_a_disk_that_hangs_holds_nobody(prolog: Prolog) -> None:
    """No signal ends a process that waits for a frozen disk: it is left behind."""
    assert _in_a_namespace(prolog, _FROZEN) == ["status 0"]
