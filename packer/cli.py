"""`packer`: packs a prefix of small objects into shards. Not there yet; it says so."""

import sys

import click


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
        "allow_extra_args": True,
    }
)
@click.version_option(package_name="feedrack")
def main() -> None:
    """Pack millions of small objects into shards (not yet in this release)."""
    click.echo("packer: not yet in this release", err=True)
    sys.exit(1)
