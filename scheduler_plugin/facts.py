"""What Slurm and the host say of themselves, read off texts. Pure; see `checking` and `lines`."""

import re
from collections.abc import Mapping, Sequence

import msgspec

MARKER = "feedrack-affinity "
# The first line of each text file of ours.
_OURS = re.compile(rf"(--|#) {MARKER}[0-9][^ :]*: ")


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder as it stands; `owner_id` is None where there is none."""

    path: str
    owner_id: int | None
    mode: int
    file_system: str
    reachable: bool
    """Whether SlurmUser may pass all folders above it."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and read; None is what nobody could tell."""

    etc: str
    spank_path: str
    prolog_path: str
    beside_path: str
    """Where our job_submit script lies if the site has one of its own."""
    requests_path: str
    config: str | None
    """Of `scontrol show config`."""
    features: Mapping[str, Sequence[str]] | None
    racks: Mapping[str, str]
    """Slurm nodes to racks, as the topology or the operator says."""
    plugstack: str | None
    """The file and what it includes."""
    prologs: Mapping[str, str]
    """The site's own programs at PrologSlurmctld, to what their text is."""
    job_submit: str | None
    burst_buffer: str | None = None
    burst_buffer_conf: str | None = None
    spank: bytes | None = None
    prolog: bytes | None = None
    closed: Sequence[str] = ()
    """Of these two, those that not everybody on this host may read and run."""
    affinity_config_path: str
    has_affinity_config: bool
    wants_burst_buffer: bool
    folders: Sequence[Folder]


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config` by key; a setting that is not set is left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and value.strip() not in ("", "(null)"):
            found.setdefault(key.strip(), value.strip())
    return found


def parse_features(text: str) -> dict[str, tuple[str, ...]]:
    """`sinfo --Node -o "%N|%f"`: features by node."""
    found = {}
    for line in text.splitlines():
        name, bar, features = line.strip().partition("|")
        if bar and name:
            found[name] = tuple(each for each in features.split(",") if each not in ("", "(null)"))
    return found


def parse_leaves(text: str) -> dict[str, str]:
    """`scontrol show topology`: the nodes of each lowest switch or block, as a host list."""
    found = {}
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        name = words.get("BlockName") or words.get("SwitchName")
        if name and words.get("Level", "0") == "0" and words.get("Nodes", "(null)") != "(null)":
            found[name] = words["Nodes"]
    return found


def parse_release(text: str) -> tuple[int, int, int] | None:
    """22.05.8 of a text that has it somewhere; None if none has."""
    found = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d{1,2}))?", text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def values(config: Mapping[str, str], key: str) -> list[str]:
    """A setting that newer releases let stand several times, as `Key[0]`, `Key[1]`."""
    return [value for name, value in config.items() if re.fullmatch(rf"{key}(\[\d+\])?", name)]


def parameters(config: Mapping[str, str]) -> list[str]:
    return [each for each in config.get("SchedulerParameters", "").split(",") if each]


def slurm_user(config: Mapping[str, str]) -> tuple[str, int] | None:
    """Name and id of `slurm(64030)`."""
    found = re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)\((\d+)\)", config.get("SlurmUser", ""))
    return None if found is None else (found[1], int(found[2]))


def is_ours(text: str) -> bool:
    """Whether a script or unit was written by `feedrack-affinity install`."""
    return _OURS.match(text) is not None


def shown(release: tuple[int, int, int]) -> str:
    return f"{release[0]}.{release[1]:02}.{release[2]}"
