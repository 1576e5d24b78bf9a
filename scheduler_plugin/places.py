"""Where the site's parts lie. Pure; a path that cannot be written into all of them is refused."""

import re
from pathlib import Path

import msgspec

# Paths are put into C, Lua, TOML and a systemd unit: they hold nothing that means something there.
_PATH = re.compile(r"/[A-Za-z0-9._+@,=/-]+\Z")
_PATH_BYTES_MOST = 200


class PlaceError(Exception):
    """A path that is refused, or a configuration that cannot be read."""


class Folders(msgspec.Struct, frozen=True):
    """Where the controller, its prolog and the daemon leave each other files."""

    rankings: str = "/run/feedrack-affinity/rankings"
    requests: str = "/run/feedrack-affinity/requests"
    staged: str = "/run/feedrack-affinity/staged"
    state: str = "/var/lib/feedrack-affinity"

    def all(self) -> tuple[str, str, str, str]:
        return (self.rankings, self.requests, self.staged, self.state)


class _Waiting(msgspec.Struct, frozen=True):
    most_minutes: int = 1440


class _Slurm(msgspec.Struct, frozen=True):
    commands_folder: str | None = None


class Settings(msgspec.Struct, frozen=True):
    """Of affinity.toml, what is built into the site's parts; the daemon reads the rest."""

    folders: Folders = Folders()
    waiting: _Waiting = _Waiting()
    slurm: _Slurm = _Slurm()


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Every file of ours on the controller's host."""

    etc: Path
    lib: Path
    units: Path
    config: Path
    folders: Folders

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


def load_settings(path: Path) -> Settings:
    """What an affinity.toml says, or the defaults where there is none.

    Raises: PlaceError.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Settings)
    except FileNotFoundError:
        return Settings()
    except (OSError, msgspec.MsgspecError) as error:
        raise PlaceError(f"{path}: {error}") from error


def places(etc: Path, lib: Path, units: Path, config: Path, folders: Folders) -> Places:
    """All places, each looked at.

    Raises: PlaceError.
    """
    for each in (*map(str, (etc, lib, units, config)), *folders.all()):
        checked(each)
    if len(set(folders.all())) < len(folders.all()):
        raise PlaceError("two of the folders are one")
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
