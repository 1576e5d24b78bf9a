"""`feedrack`: serve a node, look at a configuration, ask a node how it does.

Exit status: 0 done, 1 failed, 2 wrong use (a configuration that is wrong included).
"""

import asyncio
import resource
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec
import tomli_w

from gateway.config import Config, ConfigError, load, shown
from gateway.errors import FeedrackError

_FILE = click.Path(path_type=Path, dir_okay=False)


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


def _load(path: Path) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        _wrong(error)


def _wrong(error: ConfigError) -> NoReturn:
    click.echo(f"feedrack: {error}", err=True)
    sys.exit(2)
