"""`feedrack`: serve a node, look at a configuration, ask a node how it does, check its RDMA.

Exit status: 0 done, 1 failed, 2 wrong use (a configuration that is wrong included).
"""

import asyncio
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec
import tomli_w

from gateway.config import Config, ConfigError, load, shown
from gateway.errors import FeedrackError

if TYPE_CHECKING:
    from gateway.rdma.findings import Finding

_FILE = click.Path(path_type=Path, dir_okay=False)
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="feedrack")
def main() -> None:
    """An S3 gateway with a disk cache that keeps GPUs fed."""


@main.command()
@click.option("--config", "path", type=_FILE, required=True, help="The TOML file to run.")
def serve(path: Path) -> None:
    """Run one node in the foreground; SIGTERM drains it, SIGHUP reads its certificate again.

    With several workers, SIGUSR2 reads the configuration and restarts them one by one.
    """
    from gateway.telemetry.logs import configure

    config = _load(path)
    configure(config.log)
    try:
        sys.exit(_serve(path, config))
    except ConfigError as error:
        _wrong(error)
    except (FeedrackError, OSError) as error:
        click.echo(f"feedrack: {error}", err=True)
        sys.exit(1)


def _serve(path: Path, config: Config) -> int:
    # A client takes two descriptors while a file is sent to it, and the cache keeps files open; the
    # soft limit is there for programs that use select().
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Imported by need: a supervisor has no use for most of a node.
    if config.node.workers > 1:
        from gateway.processes.supervisor import Supervisor

        return Supervisor(path, config).run()
    from gateway.app import serve as run

    asyncio.run(run(config))
    return 0


@main.command()
@click.argument("path", type=_FILE, metavar="FILE")
def config(path: Path) -> None:
    """Print the resolved configuration, or what is wrong with it."""
    click.echo(tomli_w.dumps(shown(_load(path))), nl=False)


@main.command()
@click.option("--admin", "url", default="http://127.0.0.1:9001", show_default=True)
@click.option("--token-file", type=_FILE, help="The admin port's bearer token.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def status(url: str, token_file: Path | None, as_json: bool) -> None:
    """Show members, tiers, hit rates and what is filling."""
    from gateway.admin.status import StatusError, fetch, render

    try:
        token = token_file.read_text().strip() if token_file is not None else None
        found = asyncio.run(fetch(url, token))
    except (StatusError, OSError) as error:
        click.echo(f"feedrack: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        render(found)


@main.command("rdma-check")
@click.option("--config", "path", type=_FILE, help="The TOML file that the node runs.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def rdma_check(path: Path | None, as_json: bool) -> None:
    """Say whether this host will use RDMA, and what to do about what is wrong.

    Exits 0 if it will, 1 if not. Run it as the user, and in the container, that the node runs in.
    """
    from gateway.rdma.checking import check
    from gateway.rdma.facts import gather, open_as_gateway
    from gateway.rdma.findings import is_used, verdict
    from gateway.rdma.targets import target_bytes

    node = Config() if path is None else _load(path)
    config = node.rdma
    peer_bytes = 0
    if node.cluster is not None:
        peer_bytes = config.peer_buffers * target_bytes(node.cache.chunk_size)
    findings = check(gather(open_as_gateway(config)), config, peer_bytes=peer_bytes)
    used, said = is_used(findings), verdict(findings, required=config.mode == "required")
    if as_json:
        click.echo(msgspec.json.encode({"used": used, "verdict": said, "findings": findings}))
    else:
        _tell_findings(findings)
        click.echo(f"\n{said}")
    sys.exit(0 if used else 1)


def _tell_findings(findings: "Iterable[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for each in findings:
        found = Text(each.found)
        if each.why:
            found.append(f"\n{each.why}", style="dim")
        if each.do:
            found.append(f"\n→ {each.do}")
        table.add_row(Text(each.state, style=_COLOURS[each.state]), Text(each.name), found)
    Console().print(table)


def _load(path: Path) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        _wrong(error)


def _wrong(error: ConfigError) -> NoReturn:
    click.echo(f"feedrack: {error}", err=True)
    sys.exit(2)
