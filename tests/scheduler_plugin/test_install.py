"""What is put in place, and what never is touched."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin import install
from scheduler_plugin.asking import file_system, look_at
from scheduler_plugin.cli import main
from scheduler_plugin.config import Config, FoldersConfig, GatewaysConfig, load
from scheduler_plugin.lines import lua_lines
from scheduler_plugin.places import PlaceError, Places, checked, places

_ROOT = Path(__file__).parents[2]
_DEFAULTS = Config(gateways=GatewaysConfig(admin_urls=("http://gw:1",), token_file=Path("/t")))
_SITE = """\
function slurm_job_submit(job, parts, uid)
  job.seen = "site"
  return slurm.SUCCESS
end
function slurm_job_modify() return "site's" end
"""

needs_compiler = pytest.mark.skipif(
    "slurm" not in os.environ.get("REQUIRE", "").split(",")
    and (shutil.which("gcc") is None or not Path("/usr/include/slurm/spank.h").exists()),
    reason="gcc or Slurm's headers are not installed",
)


@pytest.fixture(autouse=True)
def no_controller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine's own cluster is none of these tests' business, and Slurm's commands take nine
    seconds to say that no controller answers: tests/slurm has them do so once."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("scontrol", "sinfo"):
        (commands / name).write_text("#!/bin/sh\nexit 1\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


class Site:
    """A controller's host, in a folder; `compiler` counts as gcc."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.etc = base / "etc"
        self.lib = base / "lib"
        self.units = base / "units"
        self.config = base / "feedrack" / "affinity.toml"
        self.etc.mkdir()
        self.places = places(self.etc, self.lib, self.units, self.config, FoldersConfig())

    def install(self, *words: str) -> Result:
        given = ("--etc", self.etc, "--lib", self.lib, "--units", self.units, "--config",
                 self.config)  # fmt: skip
        return CliRunner().invoke(main, ["install", *map(str, given), *words])

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.base)): path.read_bytes()
            for path in sorted(self.base.rglob("*"))
            if path.is_file() and path.parent != self.base
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    base = tmp_path / "site"
    base.mkdir()
    return Site(base)


_ALL = {
    "etc/job_submit.lua",
    "feedrack/affinity.toml",
    "lib/feedrack-prolog",
    "lib/feedrack_spank.so",
    "units/feedrack-affinity.service",
}


def test_without_write_nothing_is_changed_and_all_is_told(site: Site) -> None:
    done = site.install("--cc", "/no/compiler")
    assert done.exit_code == 1
    assert list(site.base.iterdir()) == [site.etc]
    assert list(site.etc.iterdir()) == []
    for path in _ALL:
        assert f"+ {site.base}/{path}   would be written" in done.output
    assert "JobSubmitPlugins=lua\n" in done.output
    assert f"PrologSlurmctld={site.lib}/feedrack-prolog\n" in done.output
    assert "controller" in done.output
    assert "does not answer" in done.output


@needs_compiler
def test_with_write_all_is_there(site: Site) -> None:
    done = site.install("--write")
    assert done.exit_code == 1, "slurm.conf still lacks what only its owner may write"
    assert set(site.files()) == _ALL
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (site.lib).iterdir()
    }  # fmt: skip
    assert modes == {"feedrack_spank.so": 0o644, "feedrack-prolog": 0o755}
    assert stat.S_IMODE(site.places.job_submit.stat().st_mode) == 0o644


@needs_compiler
def test_what_commands_load_is_for_all_whatever_the_mask_says(site: Site) -> None:
    mask = os.umask(0o077)
    try:
        site.install("--write")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(site.lib.stat().st_mode) == 0o755
    assert stat.S_IMODE(site.places.spank.stat().st_mode) == 0o644


@needs_compiler
def test_again_changes_nothing(site: Site) -> None:
    site.install("--write")
    before = {path: path.stat().st_mtime_ns for path in site.base.rglob("*")}
    done = site.install("--write", "--cc", "/no/compiler")
    assert done.output.count("  = ") == 4
    assert "is yours, and is never overwritten" in done.output
    assert {path: path.stat().st_mtime_ns for path in site.base.rglob("*")} == before


@needs_compiler
def test_an_older_release_of_ours_is_replaced(site: Site) -> None:
    site.install("--write")
    whole = site.files()
    lua = site.places.job_submit
    lua.write_text(lua.read_text().replace(f"feedrack-affinity {install.version()}",
                                           "feedrack-affinity 0.0.9", 1))  # fmt: skip
    binary = site.places.spank.read_bytes()
    said = f"feedrack-affinity {install.version()} ".encode()
    site.places.spank.write_bytes(binary.replace(said, said[:-2] + b"9 "))
    done = site.install()
    assert f"~ {lua}   is of feedrack 0.0.9, would be replaced" in done.output
    assert f"~ {site.places.spank}   is of feedrack" in done.output
    site.install("--write")
    assert site.files() == whole


@needs_compiler
def test_a_plugin_built_for_another_folder_is_built_again(site: Site) -> None:
    site.install("--write")
    site.config.write_text(
        '[gateways]\nadmin_urls = ["http://gw:1"]\ntoken_file = "/t"\n'
        '[folders]\nrequests = "/run/elsewhere/requests"\n'
    )
    done = site.install("--write")
    assert f"~ {site.places.prolog}" in done.output
    assert f"= {site.places.spank}" in done.output
    assert b"feedrack-requests /run/elsewhere/requests\0" in site.places.prolog.read_bytes()
    assert "/run/elsewhere" not in site.places.job_submit.read_text()


# What is not ours


@needs_compiler
def test_a_sites_own_script_stays_and_ours_goes_beside_it(site: Site) -> None:
    site.places.job_submit.write_text(_SITE)
    done = site.install("--write")
    assert site.places.job_submit.read_text() == _SITE
    assert "slurm_job_submit" in site.places.beside.read_text()
    for line in lua_lines(str(site.places.beside)):
        assert f"  {line.text}\n" in done.output


@needs_compiler
def test_nothing_that_is_not_ours_is_replaced(site: Site) -> None:
    theirs = (site.places.spank, site.places.prolog, site.places.unit, site.config)
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            '[gateways]\nadmin_urls = ["http://gw:1"]\ntoken_file = "/t"\n'
            "# feedrack-affinity 0.1.0: says so, but not at the top\n"
        )
    before = [path.read_bytes() for path in theirs]
    done = site.install("--write")
    assert [path.read_bytes() for path in theirs] == before
    assert done.output.count("is there, and not ours") == 3
    assert done.exit_code == 1


@needs_compiler
def test_a_link_is_somebody_elses(site: Site, tmp_path: Path) -> None:
    kept = tmp_path / "kept.lua"
    kept.write_text("-- feedrack-affinity 0.0.1: looked after elsewhere\n")
    site.places.job_submit.symlink_to(kept)
    site.places.lib.mkdir()
    site.places.prolog.symlink_to(tmp_path / "nowhere")
    site.install("--write")
    assert kept.read_text().endswith("elsewhere\n")
    assert site.places.job_submit.is_symlink()
    assert site.places.prolog.is_symlink()
    assert not (tmp_path / "nowhere").exists()
    assert site.places.beside.is_file()


@needs_compiler
def test_what_stages_is_put_in_place_where_it_is_wanted(site: Site) -> None:
    site.install("--write", "--burst-buffer")
    text = site.places.burst_buffer.read_text()
    assert 'local STAGED = "/run/feedrack-affinity/staged"\n' in text
    assert "slurm_bb_data_in" in text


@needs_compiler
def test_a_cluster_that_stages_by_a_script_of_its_own_keeps_it(site: Site) -> None:
    site.places.burst_buffer.write_text("-- theirs\n")
    done = site.install("--write", "--burst-buffer")
    assert site.places.burst_buffer.read_text() == "-- theirs\n"
    assert "ours cannot be added to it" in done.output.replace("\n", " ")


# Failures


def test_a_compiler_that_fails_changes_nothing_and_is_quoted(site: Site, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'spank.h: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = site.install("--write", "--cc", str(compiler))
    assert done.exit_code == 1
    assert "spank.h: no such thing" in done.output
    assert "nothing was changed" in done.output
    assert site.files() == {}


def test_a_compiler_that_is_not_there_changes_nothing(site: Site) -> None:
    done = site.install("--write", "--cc", "/no/compiler")
    assert done.exit_code == 1
    assert "/no/compiler" in done.output
    assert site.files() == {}


@needs_compiler
def test_a_folder_that_cannot_be_written_leaves_all_as_it_was(site: Site) -> None:
    (site.etc / "file").touch()
    done = site.install("--write", "--units", f"{site.etc}/file/units")
    assert done.exit_code == 1
    assert set(site.files()) == {"etc/file"}
    assert f"{site.etc}/file" in done.output


@pytest.mark.parametrize(
    "words",
    [
        ("--rack", "rack1"),
        ("--rack", "=n1"),
        ("--rack", "rack 1=n1"),
        ("--rack", 'r"=n1'),
        ("--lib", '/usr/lib/"'),
        ("--lib", "/usr/lib/../x"),
        ("--lib", "relative"),
        ("--lib", "/usr/lib/ x"),
        ("--etc", "/etc/x\\y"),
        ("--etc", "/etc/x]]y"),
        ("--nonsense",),
    ],
)
def test_wrong_use_ends_with_2_and_changes_nothing(site: Site, words: tuple[str, ...]) -> None:
    done = site.install("--write", *words)
    assert done.exit_code == 2, done.output
    assert site.files() == {}


@pytest.mark.parametrize("text", ["nonsense", "[folders]\nrequest = '/x'\n", "[gateways]\n"])
def test_a_configuration_that_is_wrong_is_wrong_use(site: Site, text: str) -> None:
    site.config.parent.mkdir()
    site.config.write_text(text)
    done = site.install("--write")
    assert done.exit_code == 2
    assert set(site.files()) == {"feedrack/affinity.toml"}


@given(st.text() | st.from_regex(r"/[a-z./\"'\\\n %-]{0,20}", fullmatch=True))
def test_a_path_that_is_let_in_means_nothing_to_c_lua_or_a_unit(path: str) -> None:
    try:
        checked(path)
    except PlaceError:
        return
    assert not set(path) & set("\"'\\\n\r%$`;[](){} \t\0")
    assert path.isascii()
    assert Path(path).is_absolute()
    assert str(Path(path)) == path
    assert ".." not in path.split("/")


def test_folders_are_four() -> None:
    same = FoldersConfig(rankings=Path("/run/x"), requests=Path("/run/x"))
    with pytest.raises(PlaceError):
        places(Path("/etc"), Path("/lib"), Path("/units"), Path("/config"), same)


# For machines


def test_json_says_what_the_tables_say(site: Site) -> None:
    done = site.install("--json")
    told = msgspec.json.decode(done.stdout)
    assert not told["written"]
    assert {each["path"] for each in told["files"]} == {f"{site.base}/{path}" for path in _ALL}
    assert {each["action"] for each in told["files"]} == {"new"}
    assert {each["state"] for each in told["checks"]} <= {"ok", "missing", "unknown"}
    assert {"file", "text", "why", "needed"} == set(told["lines"][0])


# What the files say


def _parts(found: Places, **more: object) -> dict[str, bytes]:
    how: dict[str, object] = {
        "most_wait_minutes": 90, "program": "/opt/feedrack/bin/feedrack-affinity",
        "user": "slurm", "release": None, "beside": False, "burst_buffer": False,
    }  # fmt: skip
    make: Callable[..., list[install.Part]] = install.parts
    return {part.path.name: part.content for part in make(found, **(how | more))}


def test_no_placeholder_is_left(site: Site) -> None:
    for name, content in _parts(site.places).items():
        assert b"@RANK" not in content, name
        assert b"@MOST" not in content, name
    lua = _parts(site.places)["job_submit.lua"].decode()
    assert 'local RANKINGS = "/run/feedrack-affinity/rankings"\n' in lua
    assert 'tonumber("90")' in lua


def test_a_placeholder_that_nobody_fills_is_an_error() -> None:
    with pytest.raises(install.InstallError, match="@NOBODY@"):
        install.fill("x = @NOBODY@", {"SOMEBODY": "y"})


def test_a_user_that_cannot_be_named_in_a_unit_is_refused(site: Site) -> None:
    with pytest.raises(install.InstallError):
        _parts(site.places, user="slurm\nExecStart=/bin/sh")


def test_the_sample_configuration_is_one_and_says_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "affinity.toml"
    path.write_bytes(install.source("affinity.toml"))
    sample = load(path)
    assert sample == msgspec.structs.replace(_DEFAULTS, gateways=sample.gateways)
    # With all that is commented out put in.
    path.write_text(re.sub(r"(?m)^# (?=[a-z_-]+ = )", "", path.read_text()))
    whole = load(path)
    assert whole.folders == _DEFAULTS.folders
    assert whole.warming == _DEFAULTS.warming
    assert whole.waiting == _DEFAULTS.waiting
    assert whole.ranking == msgspec.structs.replace(
        _DEFAULTS.ranking, datasets=("s3://train/imagenet",)
    )
    assert whole.nodes == {"gw-a": "n1"}
    assert whole.readers["vision"] == ("alice", "@vision")


def test_the_unit_makes_the_folders_and_lets_the_guard_live(site: Site) -> None:
    unit = _parts(site.places)["feedrack-affinity.service"].decode()
    assert (
        "RuntimeDirectory=feedrack-affinity feedrack-affinity/rankings "
        "feedrack-affinity/requests feedrack-affinity/staged\n"
    ) in unit
    for line in ("RuntimeDirectoryMode=0700", "RuntimeDirectoryPreserve=yes", "User=slurm",
                 "StateDirectory=feedrack-affinity", "KillMode=process",
                 "Restart=always"):  # fmt: skip
        assert f"{line}\n" in unit


def test_a_unit_names_folders_that_systemd_does_not_make(site: Site) -> None:
    folders = FoldersConfig(rankings=Path("/srv/a/rankings"), state=Path("/srv/a/state"))
    found = msgspec.structs.replace(site.places, folders=folders)
    unit = _parts(found)["feedrack-affinity.service"].decode()
    assert "ReadWritePaths=/srv/a/rankings /srv/a/state\n" in unit
    assert "StateDirectory" not in unit


def test_a_unit_is_one_that_systemd_takes(site: Site, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        if "systemd" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names systemd, and systemd-analyze is not installed")
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "feedrack-affinity"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "feedrack-affinity.service"
    unit.write_bytes(_parts(site.places, program=str(program), user="root")[unit.name])
    done = subprocess.run([verify, "verify", "--man=no", unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if unit.name in line]


# A site's own script and ours in one


def _run_lua(text: str, tmp_path: Path) -> list[str]:
    lua = shutil.which("lua5.1") or shutil.which("lua")
    if lua is None:
        pytest.skip("lua is not installed")
    path = tmp_path / "try.lua"
    path.write_text(text)
    done = subprocess.run([lua, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ('function slurm_job_submit(job) job.near = job.seen end', ["0", "site", "site"]),
        ("function slurm_job_submit(job) error('x') end", ["0", "site", "nil"]),
        ("function slurm_job_submit(job) return 2 end function slurm_job_modify() end",
         ["0", "site", "nil"]),
        ("this is no lua", ["0", "site", "nil"]),
        (None, ["0", "site", "nil"]),
    ],
)  # fmt: skip
def test_the_three_lines_call_ours_after_the_sites_whatever_ours_does(
    ours: str | None, told: list[str], tmp_path: Path
) -> None:
    beside = tmp_path / "feedrack.lua"
    if ours is not None:
        beside.write_text(ours)
    lines = [line.text for line in lua_lines(str(beside))]
    assert len(lines) == 3
    test = (
        "local job = {}; print(slurm_job_submit(job)); print(job.seen); print(job.near)\n"
        "print(slurm_job_modify())"
    )
    text = "\n".join(("slurm = {SUCCESS = 0}", _SITE, *lines, test))
    assert _run_lua(text, tmp_path) == [*told, "site's"]


def test_a_job_that_the_site_refuses_stays_refused_and_is_not_placed(tmp_path: Path) -> None:
    beside = tmp_path / "feedrack.lua"
    beside.write_text("function slurm_job_submit(job) job.near = 1; return 0 end")
    lines = [line.text for line in lua_lines(str(beside))]
    site = "function slurm_job_submit(job) return 2042 end"
    test = "local job = {}; print(slurm_job_submit(job)); print(job.near)"
    text = "\n".join(("slurm = {SUCCESS = 0}", site, *lines, test))
    assert _run_lua(text, tmp_path) == ["2042", "nil"]


# The host


_MOUNTS = (
    "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    "22 21 0:20 / /run rw - tmpfs tmpfs rw\n"
    "23 21 0:21 / /srv/with\\040blank rw shared:2 master:1 - nfs4 server:/x rw\n"
    "nonsense\n"
)


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    assert file_system(_MOUNTS, Path("/run/feedrack/x")) == "tmpfs"
    assert file_system(_MOUNTS, Path("/runaway")) == "ext4"
    assert file_system(_MOUNTS, Path("/srv/with blank/x")) == "nfs4"
    assert file_system("", Path("/")) == "unknown"


def test_a_folder_is_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    assert look_at(folder, None).owner_id is None
    folder.mkdir(mode=0o700)
    found = look_at(folder, 0)
    assert (found.owner_id, found.mode, found.reachable) == (os.geteuid(), 0o700, True)
    tmp_path.chmod(0o700)
    assert not look_at(folder, 54321).reachable


def test_the_wheel_has_the_sites_parts(tmp_path: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(
        [uv, "build", "--wheel", "--offline", "--out-dir", tmp_path],
        cwd=_ROOT, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"no wheel can be built here: {done.stderr}")
    [wheel] = tmp_path.glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    for name in ("feedrack_spank.c", "feedrack_prolog.c", "job_submit.lua", "affinity.toml",
                 "burst_buffer.lua",
                 "feedrack-affinity.service"):  # fmt: skip
        assert f"scheduler_plugin/site/{name}" in held


def test_the_program_is_a_script_of_the_package() -> None:
    program = Path(sys.executable).with_name("feedrack-affinity")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "install" in done.stdout
