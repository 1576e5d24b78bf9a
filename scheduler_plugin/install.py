"""Puts the site's parts in place: what would be written where, the compiler, and files by rename.

Nothing that is not ours is ever replaced, and nothing is until all that is new is there whole.
"""

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

import msgspec

from scheduler_plugin.asking import read_bytes
from scheduler_plugin.facts import MARKER, is_ours
from scheduler_plugin.places import Places, checked

_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
_COMPILE_SECONDS = 120
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
_KEPT = "changes to this file are lost with the next `feedrack-affinity install`"

Action = Literal["new", "replace", "same", "stays"]


class InstallError(Exception):
    """Nothing was changed; says why."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of ours: what it holds, or what it is compiled from."""

    path: Path
    mode: int
    content: bytes = b""
    source: str = ""
    """A C file of the site's parts; then `content` is empty until it is built."""
    flags: tuple[str, ...] = ()
    marker: bytes
    """What the file has in it where it is the one we would make now."""
    replaced: bool = True
    """False for what is the operator's once it is there."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a part, and why."""

    part: Part
    action: Action
    why: str


def version() -> str:
    return metadata.version("feedrack")


def parts(
    places: Places,
    *,
    most_wait_minutes: int,
    program: str,
    user: str,
    release: tuple[int, int, int] | None,
    beside: bool,
    burst_buffer: bool,
) -> list[Part]:
    """All that belongs on the controller's host; with `beside`, job_submit.lua is the site's.

    `release` is Slurm's, if it is known: a plugin that was built for another is built again.
    Raises: PlaceError for a program that cannot be named in a unit, InstallError for a user.
    """
    checked(program)
    if not _USER.match(user):
        raise InstallError(f"SlurmUser {user!r} cannot be named in a unit")
    given = {
        "RANKINGS": str(places.folders.rankings),
        "REQUESTS": str(places.folders.requests),
        "STAGED": str(places.folders.staged),
        "STATE": str(places.folders.state),
        "CONFIG": str(places.config),
        "MOST_WAIT_MINUTES": str(most_wait_minutes),
        "VERSION": version(),
        "PROGRAM": program,
        "USER": user,
        "FOLDERS": _unit_folders(places),
    }
    found = [
        _compiled(places.spank, "feedrack_spank.c", ("-fPIC", "-shared"), 0o644, release),
        _compiled(
            places.prolog,
            "feedrack_prolog.c",
            (f'-DFEEDRACK_REQUESTS="{places.folders.requests}"',),
            0o755,
            None,
        ),
        _text(places.beside if beside else places.job_submit, "job_submit.lua", "--", given),
        _text(places.unit, "feedrack-affinity.service", "#", given),
        Part(
            path=places.config, mode=0o644, content=source("affinity.toml"), marker=b"",
            replaced=False,
        ),
    ]  # fmt: skip
    if burst_buffer:
        found.append(_text(places.burst_buffer, "burst_buffer.lua", "--", given))
    return found


def source(name: str) -> bytes:
    """One of the site's parts as it is delivered.

    Raises: InstallError.
    """
    try:
        return (resources.files("scheduler_plugin") / "site" / name).read_bytes()
    except OSError as error:
        raise InstallError(f"{name} is not among what was installed with feedrack") from error


def fill(text: str, given: Mapping[str, str]) -> str:
    """`text` with each `@NAME@` replaced.

    Raises: InstallError for a name that is not given.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] not in given:
            raise InstallError(f"nobody says what {found[0]} is")
        return given[found[1]]

    return _PLACEHOLDER.sub(value, text)


def _text(path: Path, name: str, comment: str, given: Mapping[str, str]) -> Part:
    first = f"{comment} {MARKER}{version()}: {_KEPT}\n"
    content = (first + fill(source(name).decode(), given)).encode()
    return Part(path=path, mode=0o644, content=content, marker=content)


def _compiled(
    path: Path, name: str, flags: tuple[str, ...], mode: int, release: tuple[int, int, int] | None
) -> Part:
    text = source(name)
    digest = hashlib.sha256(b"\0".join((text, *(flag.encode() for flag in flags)))).hexdigest()
    said = f"{MARKER}{version()} {digest[:16]}"
    marker = f"feedrack-marker {said}".encode() + b"\0"
    if release is not None and path.suffix == ".so":
        # Slurm's own header says the rest when it is compiled.
        marker += f"|feedrack-built-for {release[0]:02}.{release[1]:02}.".encode()
    return Part(
        path=path, mode=mode, source=name, flags=(*flags, f'-DFEEDRACK_MARKER="{said}"'),
        marker=marker,
    )  # fmt: skip


def _unit_folders(places: Places) -> str:
    """Directives that make the folders, each of SlurmUser alone."""
    runtime, others = [], []
    for path in (places.folders.rankings, places.folders.requests, places.folders.staged):
        if path.is_relative_to("/run") and len(path.parts) > 2:
            runtime.append(str(path.relative_to("/run")))
        else:
            others.append(str(path))
    lines = []
    if runtime:
        tops = dict.fromkeys(each.partition("/")[0] for each in runtime)
        named = " ".join(dict.fromkeys((*tops, *runtime)))
        lines += [f"RuntimeDirectory={named}", "RuntimeDirectoryMode=0700",
                  "RuntimeDirectoryPreserve=yes"]  # fmt: skip
    state = places.folders.state
    if state.is_relative_to("/var/lib") and len(state.parts) > 3:
        lines += [f"StateDirectory={state.relative_to('/var/lib')}", "StateDirectoryMode=0700"]
    else:
        others.append(str(state))
    if others:
        lines.append(f"ReadWritePaths={' '.join(others)}")
    return "\n".join(lines)


def is_beside(places: Places) -> bool:
    """Whether the site has a job_submit.lua of its own, which then stays as it is."""
    path = places.job_submit
    return (path.exists() or path.is_symlink()) and not _is_ours(path)


def plan(found: Sequence[Part]) -> list[Step]:
    """What is to be done about each part. Looks, changes nothing."""
    return [_step(part) for part in found]


def _step(part: Part) -> Step:
    path = part.path
    if not path.exists() and not path.is_symlink():
        return Step(part=part, action="new", why="")
    if not part.replaced:
        return Step(part=part, action="stays", why="is yours, and is never overwritten")
    if not _is_ours(path):
        return Step(part=part, action="stays", why="is there, and not ours")
    old = read_bytes(path) or b""
    if old == part.content or (
        part.source and all(each in old for each in part.marker.split(b"|"))
    ):
        return Step(part=part, action="same", why="")
    return Step(part=part, action="replace", why=f"is of feedrack {_version_in(old)}")


def _is_ours(path: Path) -> bool:
    # Behind a link is what something else looks after.
    if path.is_symlink():
        return False
    found = read_bytes(path) or b""
    return is_ours(found.decode("utf-8", "replace")) or (
        found.startswith(b"\x7fELF") and b"feedrack-marker " + MARKER.encode() in found
    )


def _version_in(text: bytes) -> str:
    found = re.search(MARKER.encode() + rb"([0-9][A-Za-z0-9.+!-]*[A-Za-z0-9])", text)
    return "unknown version" if found is None else found[1].decode("ascii")


def write(steps: Sequence[Step], compiler: str) -> None:
    """Does what is to be done. All is built and lies beside its place before the first is renamed.

    Raises: InstallError; what could not be built, or found no room, has changed no file.
    """
    todo = [step.part for step in steps if step.action in ("new", "replace")]
    built = [
        msgspec.structs.replace(part, content=build(part, compiler)) if part.source else part
        for part in todo
    ]
    staged: dict[Path, Path] = {}
    try:
        for part in built:
            staged[part.path] = _stage(part)
        for path in list(staged):
            staged[path].rename(path)
            del staged[path]
    except OSError as error:
        raise InstallError(f"{error.filename or ''}: {error.strerror}") from error
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _stage(part: Part) -> Path:
    _make_folder(part.path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{part.path.name}.", dir=part.path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(part.content)
            os.fchmod(file.fileno(), part.mode)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink()
        raise
    return temporary


def _make_folder(path: Path) -> None:
    """With those above it, open to everybody whatever the installing user's mask says."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir()
    path.chmod(0o755)


def build(part: Part, compiler: str) -> bytes:
    """What the compiler makes of a part; it works in a folder of its own.

    Raises: InstallError in the compiler's own words.
    """
    with tempfile.TemporaryDirectory(prefix="feedrack-") as folder:
        (Path(folder) / part.source).write_bytes(source(part.source))
        argv = [*shlex.split(compiler), *_FLAGS, *part.flags, "-o", "built", part.source]
        try:
            done = subprocess.run(  # noqa: S603 - the operator's compiler, and no shell
                argv,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(f"{compiler}: {error}; nothing was changed") from error
        if done.returncode != 0:
            hint = "" if part.source != "feedrack_spank.c" else _HEADERS
            raise InstallError(
                f"{shlex.join(argv)}\n{done.stderr.strip()}\n{hint}nothing was changed"
            )
        return (Path(folder) / "built").read_bytes()


_HEADERS = (
    "Slurm's headers come with libslurm-dev or slurm-devel; where they lie elsewhere, "
    "say --cc 'gcc -I/opt/slurm/include'; "
)
