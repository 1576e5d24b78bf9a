"""Where the site's parts lie. Pure; a path that cannot be written into all of them is refused."""

import re
from pathlib import Path

import msgspec

from scheduler_plugin.config import FoldersConfig

# Paths are put into C, Lua, TOML and a systemd unit: they hold nothing that means something there.
_PATH = re.compile(r"/[A-Za-z0-9._+@,=/-]+\Z")
_PATH_BYTES_MOST = 200


class PlaceError(Exception):
    """A path that is refused; the message says which and why."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Every file of ours on the controller's host."""

    etc: Path
    lib: Path
    units: Path
    config: Path
    folders: FoldersConfig

    @property
    def spank(self) -> Path:
        return self.lib / "feedrack_spank.so"

    @property
    def prolog(self) -> Path:
        return self.lib / "feedrack-prolog"

    @property
    def job_submit(self) -> Path:
        return self.etc / "job_submit.lua"

    @property
    def beside(self) -> Path:
        return self.etc / "feedrack.lua"

    @property
    def burst_buffer(self) -> Path:
        return self.etc / "burst_buffer.lua"

    @property
    def unit(self) -> Path:
        return self.units / "feedrack-affinity.service"


def places(etc: Path, lib: Path, units: Path, config: Path, folders: FoldersConfig) -> Places:
    """All places, each looked at.

    Raises: PlaceError.
    """
    ours = (folders.rankings, folders.requests, folders.staged, folders.state)
    for each in (etc, lib, units, config, *ours):
        checked(str(each))
    if len(set(ours)) < len(ours):
        raise PlaceError("folders: two of them are one")
    return Places(etc=etc, lib=lib, units=units, config=config, folders=folders)


def checked(path: str) -> str:
    """The path itself, if it is absolute, plain and short.

    Raises: PlaceError.
    """
    if not _PATH.match(path) or len(path) > _PATH_BYTES_MOST or "//" in path:
        raise PlaceError(f"{path!r}: not a plain absolute path of at most {_PATH_BYTES_MOST} bytes")
    if {".", ".."} & set(path.split("/")) or path.endswith("/"):
        raise PlaceError(f"{path!r}: say it without . and .. and a slash at its end")
    return path
