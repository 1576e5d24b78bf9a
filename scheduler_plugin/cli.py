"""`feedrack-affinity`: sends Slurm jobs to where their data is.

Exit status: 0 done and all that is needed is there, 1 failed or something is missing, 2 wrong use
(a configuration that is wrong included).
"""

import asyncio
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_plugin.asking import RackError, Slurm, gather
from scheduler_plugin.checking import Check, all_well, check
from scheduler_plugin.config import ConfigError, FoldersConfig, WaitingConfig, load
from scheduler_plugin.daemon import run
from scheduler_plugin.dataset import BadHint, parse_dataset
from scheduler_plugin.facts import is_ours, parse_config, parse_release, slurm_user
from scheduler_plugin.folders import FolderUnsafe
from scheduler_plugin.gateways import GatewaysUnavailable
from scheduler_plugin.install import InstallError, Step, is_beside, parts, plan, write
from scheduler_plugin.lines import Line, lines, lua_lines
from scheduler_plugin.logs import log_to_standard_error
from scheduler_plugin.places import PlaceError, places
from scheduler_plugin.showing import ask, render
from scheduler_plugin.slurm.model import SlurmUnavailable

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_SIGNS = {"new": "+", "replace": "~", "same": "=", "stays": "!"}
_COLOURS = {"ok": "green", "missing": "red", "unknown": "yellow"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="feedrack")
def main() -> None:
    """Send Slurm jobs to the nodes and racks that hold their data."""


_CONFIG = click.option("--config", "config_path", type=_FILE, show_default=True,
                       default="/etc/feedrack/affinity.toml",
                       help="The daemon's configuration.")  # fmt: skip


@main.command("run")
@_CONFIG
def run_command(config_path: Path) -> None:
    """Keep rankings current, warm racks for jobs, end their waits. In the foreground."""
    log_to_standard_error()
    try:
        asyncio.run(run(load(config_path)))
    except (ConfigError, FolderUnsafe) as error:
        _failed(error, status=2)
    except (SlurmUnavailable, OSError) as error:
        _failed(error, status=1)
    except KeyboardInterrupt:
        sys.exit(0)


@main.command("rank")
@click.argument("dataset", metavar="s3://BUCKET/PREFIX")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
def rank_command(dataset: str, config_path: Path, as_json: bool) -> None:
    """Show where a dataset's jobs would be sent now, and why."""
    try:
        shown = asyncio.run(ask(load(config_path), parse_dataset(dataset)))
    except BadHint as error:
        _failed(BadHint(f"{dataset}: {error}"), status=2)
    except ConfigError as error:
        _failed(error, status=2)
    except (GatewaysUnavailable, SlurmUnavailable) as error:
        _failed(error, status=1)
    if as_json:
        click.echo(msgspec.json.encode(shown))
    else:
        render(shown)


@main.command("install")
@click.option("--etc", type=_FOLDER, default="/etc/slurm", show_default=True,
              help="The folder of slurm.conf.")  # fmt: skip
@click.option("--lib", type=_FOLDER, default="/usr/lib/feedrack", show_default=True,
              help="Where what is built here goes.")  # fmt: skip
@click.option("--units", type=_FOLDER, default="/etc/systemd/system", show_default=True,
              help="The folder of systemd's units.")  # fmt: skip
@click.option("--config", type=_FILE, default="/etc/feedrack/affinity.toml", show_default=True,
              help="The daemon's configuration.")  # fmt: skip
@click.option("--cc", default="gcc", show_default=True,
              help="The C compiler, with options if need be.")  # fmt: skip
@click.option("--rack", "racks", multiple=True, metavar="NAME=NODES",
              help="A rack like rack1=n[1-4]; default: what Slurm's topology says.")  # fmt: skip
@click.option("--burst-buffer", is_flag=True,
              help="Also what holds a job until its data is staged.")  # fmt: skip
@click.option("--write", "writing", is_flag=True, help="Do it; without it nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
def install_command(
    etc: Path, lib: Path, units: Path, config: Path, cc: str, racks: tuple[str, ...],
    burst_buffer: bool, writing: bool, as_json: bool,
) -> None:  # fmt: skip
    """Put the site's parts in place, say what slurm.conf needs, check what is there.

    Without --write nothing is changed. Files of Slurm's own (slurm.conf, plugstack.conf,
    topology.conf) never are: the lines for them are printed.
    """
    try:
        # Without one there are defaults; with one that is wrong nothing is built into anything.
        said = load(config) if config.exists() else None
        folders = FoldersConfig() if said is None else said.folders
        waiting = WaitingConfig() if said is None else said.waiting
        at = places(etc, lib, units, config, folders)
        slurm = Slurm(None if said is None else said.slurm.commands_folder)
        facts = gather(at, slurm, racks, burst_buffer=burst_buffer)
    except (ConfigError, PlaceError, RackError) as error:
        _failed(error, status=2)
    parsed = {} if facts.config is None else parse_config(facts.config)
    user = slurm_user(parsed)
    try:
        steps = plan(
            parts(
                at,
                most_wait_minutes=waiting.most_minutes,
                program=_program(),
                user="slurm" if user is None else user[0],
                release=parse_release(parsed.get("SLURM_VERSION", "")),
                beside=is_beside(at),
                burst_buffer=burst_buffer,
            )
        )
        if writing:
            write(steps, cc)
            answers = facts.config is not None
            facts = gather(at, slurm, racks, burst_buffer=burst_buffer, answers=answers)
    except (PlaceError, InstallError) as error:
        _failed(error, status=1)
    checks = check(facts)
    wanted = lines(facts)
    if (
        facts.job_submit is not None
        and not is_ours(facts.job_submit)
        and facts.beside_path not in facts.job_submit
    ):
        wanted = [*lua_lines(facts.beside_path), *wanted]
    if as_json:
        click.echo(
            msgspec.json.encode(
                {
                    "written": writing,
                    "files": [
                        {"path": str(step.part.path), "action": step.action, "why": step.why}
                        for step in steps
                    ],
                    "lines": wanted,
                    "checks": checks,
                }
            )
        )
    else:
        _tell_files(steps, writing)
        _tell_lines(wanted)
        _tell_checks(checks)
        if writing:
            click.echo(
                "\nslurmctld reads what is new at its next start; `scontrol reconfigure` does for "
                "the scripts. systemd wants `systemctl daemon-reload`, and other hosts their own "
                "copy of the SPANK plugin."
            )
    sys.exit(0 if all_well(checks) else 1)


def _program() -> str:
    """How a unit calls this very program."""
    path = Path(sys.argv[0])
    if not path.is_absolute() or path.name != "feedrack-affinity":
        path = Path(shutil.which("feedrack-affinity") or sys.prefix + "/bin/feedrack-affinity")
    return str(path)


def _tell_files(steps: Iterable[Step], writing: bool) -> None:
    click.echo("Files" if writing else "Files (nothing is changed without --write)")
    for step in steps:
        what = {
            "new": "written" if writing else "would be written",
            "replace": f"{step.why}, {'replaced' if writing else 'would be replaced'}",
            "same": "is as it should be",
            "stays": step.why,
        }[step.action]
        if step.part.source and step.action in ("new", "replace"):
            what += f", built here of {step.part.source}"
        click.echo(f"  {_SIGNS[step.action]} {step.part.path}   {what}")


def _tell_lines(wanted: Sequence[Line]) -> None:
    """Plain, and each on one line: they are there to be copied."""
    if not wanted:
        return
    click.echo(
        "\nFor you to put in place, once the files above are there: slurmctld does not start\n"
        "without what its configuration names. Slurm's own files are never edited."
    )
    before: tuple[str, str] | None = None
    for line in wanted:
        if (line.file, line.why) != before:
            click.echo(f"  # {line.file}: {line.why}")
            before = (line.file, line.why)
        click.echo(f"  {line.text}")


def _tell_checks(checks: Iterable[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for each in checks:
        found = Text(each.found)
        if each.to_do:
            found.append(f"\n→ {each.to_do}")
        table.add_row(Text(f"  {each.state}", style=_COLOURS[each.state]), Text(each.name), found)
    click.echo("\nWhat is needed")
    Console().print(table)


def _failed(error: Exception, *, status: int) -> NoReturn:
    click.echo(f"feedrack-affinity: {error}", err=True)
    sys.exit(status)
