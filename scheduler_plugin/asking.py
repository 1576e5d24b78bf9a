"""Asks Slurm and this host what `checking` judges. Changes nothing."""

import glob
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scheduler_plugin.facts import (
    Facts,
    Folder,
    parse_config,
    parse_features,
    parse_leaves,
    slurm_user,
    values,
)
from scheduler_plugin.places import Places
from scheduler_plugin.slurm.records import expand_hosts

# Slurm's commands try for nine seconds where no controller listens.
_ANSWER_SECONDS = 15
_TEXT_BYTES_MOST = 1024 * 1024
_INCLUDES_DEEP = 4
_ESCAPED = re.compile(r"\\([0-7]{3})")


class RackError(Exception):
    """What was said of racks cannot be understood."""


class Slurm:
    """Slurm's own commands; each answer is None where there is none in time."""

    def __init__(self, commands_folder: Path | None = None) -> None:
        self._folder = commands_folder

    def ask(self, program: str, *words: str) -> str | None:
        path = program if self._folder is None else str(self._folder / program)
        try:
            done = subprocess.run(  # noqa: S603 - words are ours, and no shell reads them
                [path, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None

    def config(self) -> str | None:
        """`scontrol show config`, which says all of it only where the controller answers."""
        return self.ask("scontrol", "show", "config")

    def features(self) -> dict[str, tuple[str, ...]] | None:
        text = self.ask("sinfo", "--noheader", "--all", "--Node", "--format=%N|%f")
        return None if text is None else parse_features(text)

    def nodes_of(self, host_list: str) -> list[str] | None:
        """The names that `n[1-4]` stands for; None where it stands for none."""
        return list(expand_hosts(host_list)) or None

    def racks(self, said: Sequence[str], *, answers: bool = True) -> dict[str, str]:
        """Nodes to racks: as `NAME=NODES` says, and for others as the topology does, if the
        controller answers. Raises: RackError.
        """
        found: dict[str, str] = {}
        topology = self.ask("scontrol", "show", "topology") if answers else None
        leaves = parse_leaves(topology or "")
        for rack, host_list in leaves.items():
            found.update(dict.fromkeys(self.nodes_of(host_list) or (), rack))
        for each in said:
            rack, equals, host_list = each.partition("=")
            nodes = self.nodes_of(host_list) if rack and equals and host_list else None
            if not nodes or not all(
                letter.isascii() and (letter.isalnum() or letter in "._-") for letter in rack
            ):
                raise RackError(f"{each}: not NAME=NODES like rack1=n[1-4]")
            found.update(dict.fromkeys(nodes, rack))
        return found


def gather(
    places: Places,
    slurm: Slurm,
    racks: Sequence[str] = (),
    *,
    burst_buffer: bool = False,
    answers: bool = True,
) -> Facts:
    """All that can be told on this host; where no controller `answers` it is not asked.

    Raises: RackError.
    """
    config = slurm.config() if answers else None
    answers = config is not None
    parsed = {} if config is None else parse_config(config)
    user = slurm_user(parsed)
    plugstack = Path(parsed.get("PlugStackConfig", str(places.etc / "plugstack.conf")))
    folders = (places.folders.rankings, places.folders.requests, places.folders.staged)
    return Facts(
        etc=str(places.etc),
        spank_path=str(places.spank),
        prolog_path=str(places.prolog),
        beside_path=str(places.beside),
        requests_path=str(places.folders.requests),
        config=config,
        features=slurm.features() if answers else None,
        racks=slurm.racks(racks, answers=answers),
        plugstack=_plugstack(plugstack),
        prologs=_programs(values(parsed, "PrologSlurmctld")),
        job_submit=read_text(places.job_submit),
        burst_buffer=read_text(places.burst_buffer),
        burst_buffer_conf=read_text(places.etc / "burst_buffer.conf"),
        spank=read_bytes(places.spank),
        prolog=read_bytes(places.prolog),
        closed=[
            str(path)
            for path, needed in ((places.spank, 0o004), (places.prolog, 0o005))
            if path.exists() and not _is_open(path, needed)
        ],
        affinity_config_path=str(places.config),
        has_affinity_config=places.config.exists(),
        wants_burst_buffer=burst_buffer,
        folders=[look_at(each, None if user is None else user[1]) for each in folders],
    )


def _programs(paths: Iterable[str]) -> Mapping[str, str]:
    return {each: read_text(Path(each)) or "" for each in paths}


def _plugstack(path: Path, deep: int = 0) -> str | None:
    """The file with what it includes in place."""
    text = read_text(path)
    if text is None or deep > _INCLUDES_DEEP:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["include"] and len(words) > 1:
            named = sorted(glob.glob(str(path.parent / words[1])))  # noqa: PTH207 - maybe absolute
            lines.extend(_plugstack(Path(each), deep + 1) or "" for each in named)
        else:
            lines.append(line)
    return "\n".join(lines)


def read_bytes(path: Path) -> bytes | None:
    """What a file of at most 1 MiB holds; None where there is none, or no plain one."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_TEXT_BYTES_MOST)
    except OSError:
        return None


def read_text(path: Path) -> str | None:
    found = read_bytes(path)
    return None if found is None else found.decode("utf-8", "replace")


def look_at(path: Path, user_id: int | None) -> Folder:
    """A folder, what kind of file system it is on, and whether a user can get there."""
    kind = file_system(Path("/proc/self/mountinfo").read_text("utf-8", "replace"), path)
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return Folder(path=str(path), owner_id=None, mode=0, file_system=kind, reachable=False)
    return Folder(
        path=str(path),
        owner_id=found.st_uid,
        mode=found.st_mode & 0o7777,
        file_system=kind,
        reachable=user_id is None or all(_passes(each, user_id) for each in path.parents),
    )


def _is_open(path: Path, needed: int) -> bool:
    return path.stat().st_mode & needed == needed and all(
        folder.stat().st_mode & 0o001 for folder in path.parents
    )


def _passes(folder: Path, user_id: int) -> bool:
    if user_id == 0:
        return True
    found = folder.stat()
    # Groups are left out: who is let in by one alone is asked to look.
    return bool(found.st_mode & (0o100 if found.st_uid == user_id else 0o001))


def file_system(mounts: str, path: Path) -> str:
    """The kind of file system a path is on, of the text of /proc/self/mountinfo."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields, dash, rest = line.partition(" - ")
        words = fields.split(" ")
        if not dash or len(words) < 5:
            continue
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[4]))
        if (path == point or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split(" ")[0]
    return kind
