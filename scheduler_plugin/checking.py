"""What a cluster needs for jobs to go where their data is, against what Slurm says of itself.

Pure: texts of Slurm's own commands in, a verdict each out. See docs/slurm.md.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from scheduler_plugin.facts import (
    Facts,
    Folder,
    is_ours,
    parameters,
    parse_config,
    parse_release,
    shown,
    slurm_user,
    values,
)
from scheduler_plugin.ranking import COMMON_FEATURE
from scheduler_plugin.slurm.model import STRICT_FROM

SPANK_FILE = "feedrack_spank.so"
BF_INTERVAL_MOST_SECONDS = 10
_BF_INTERVAL_DEFAULT_SECONDS = 30
_OLDEST, _NEWEST = (22, 5), (25, 11)
DIRECTIVE = "Directive=FEEDRACK"
_DIRECTIVE = re.compile(r"(?im)^\s*Directive\s*=\s*FEEDRACK\s*(#.*)?$")
# Tasks of an array with a preference stay pending beside idle nodes before this one.
_ARRAYS_SINCE = (22, 5, 9)
_NAMED_MOST = 5
# Kinds of file systems whose server may be slow or away while the controller waits for it.
_REMOTE = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|orangefs|pvfs2"
    r"|panfs|wekafs|quobyte|virtiofs|fuse|fuse\..*)\Z"
)

State = Literal["ok", "missing", "unknown"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is needed; `to_do` is empty where it is there."""

    name: str
    state: State
    found: str
    to_do: str = ""


def check(facts: Facts) -> list[Check]:
    """Everything that is needed, in the order in which an operator would see to it."""
    config = None if facts.config is None else parse_config(facts.config)
    return [
        *_files(facts, config),
        *(_no_controller() if config is None else _controller(facts, config)),
        _plugstack(facts),
        *_nodes(facts, config),
        *_folders(facts, config),
    ]


def all_well(checks: Sequence[Check]) -> bool:
    return all(each.state == "ok" for each in checks)


def _said(name: str, well: bool, found: str, to_do: str) -> Check:
    return Check(
        name=name, state="ok" if well else "missing", found=found, to_do="" if well else to_do
    )


def _files(facts: Facts, config: Mapping[str, str] | None) -> Iterator[Check]:
    write = "feedrack-affinity install --write"
    ours = facts.job_submit is not None and is_ours(facts.job_submit)
    calls = facts.job_submit is not None and facts.beside_path in facts.job_submit
    yield _said(
        "job_submit.lua",
        ours or calls,
        "none" if facts.job_submit is None
        else "ours" if ours
        else f"the site's, calls {facts.beside_path}" if calls
        else "the site's",
        write if facts.job_submit is None else "add the lines below to it",
    )  # fmt: skip
    if facts.wants_burst_buffer:
        text = facts.burst_buffer
        well = text is not None and is_ours(text)
        yield _said(
            "burst_buffer.lua",
            well,
            "none" if text is None else "ours" if well else "the site's",
            write if text is None else "a cluster has one; ours cannot be added to it",
        )
        has = has_directive(facts.burst_buffer_conf)
        yield _said(
            "burst_buffer.conf", has, DIRECTIVE if has else f"has no {DIRECTIVE}",
            f"{DIRECTIVE}; without it no job asks to be staged",
        )  # fmt: skip
    yield _built(facts, config)
    text = "" if facts.prolog is None else _held(facts.prolog, b"feedrack-requests ")
    yield _said(
        "prolog's program",
        text == facts.requests_path,
        "none" if facts.prolog is None else f"writes into {text or 'no folder of ours'}",
        # 24.11 at least; a controller that runs already goes on, and starts jobs without it.
        f"{write}; a slurmctld whose slurm.conf names it does not start without it",
    )
    if facts.closed:
        yield _said(
            "files for all", False, f"not everybody may get at {', '.join(facts.closed)}",
            "chmod a+rX them and the folders above them: commands and SlurmUser load them",
        )  # fmt: skip
    yield _said(
        "affinity.toml",
        facts.has_affinity_config,
        facts.affinity_config_path if facts.has_affinity_config else "none",
        f"{write}, then name your gateways in it",
    )


def has_directive(text: str | None) -> bool:
    """Whether a burst_buffer.conf lets jobs ask for staging in the words of ours."""
    return text is not None and _DIRECTIVE.search(text) is not None


def lacks_common(facts: Facts, release: tuple[int, int, int] | None) -> bool:
    """Whether the release needs a feature that all nodes have, and there is none."""
    if not facts.features or (release is not None and release < STRICT_FROM):
        return False
    return not set.intersection(*map(set, facts.features.values()))


def _built(facts: Facts, config: Mapping[str, str] | None) -> Check:
    if facts.spank is None:
        return _said("SPANK plugin", False, "none", "feedrack-affinity install --write")
    built = parse_release(_held(facts.spank, b"feedrack-built-for "))
    runs = None if config is None else parse_release(config.get("SLURM_VERSION", ""))
    if built is None:
        return _said("SPANK plugin", False, "not ours", f"move {facts.spank_path} away")
    found = f"built for {shown(built)}"
    # Slurm loads a SPANK plugin of the same release, whatever the last number says.
    return _said(
        "SPANK plugin",
        runs is None or built[:2] == runs[:2],
        found,
        "install the new release's headers, then feedrack-affinity install --write",
    )


def _held(built: bytes, key: bytes) -> str:
    """The text behind a key of ours in a file the compiler made."""
    start = built.find(key)
    if start < 0:
        return ""
    start += len(key)
    return built[start : built.find(b"\0", start)].decode("ascii", "replace")


def _no_controller() -> Iterator[Check]:
    yield Check(
        name="controller",
        state="unknown",
        found="does not answer",
        to_do="start slurmctld, then look again: its configuration was not checked",
    )


def _controller(facts: Facts, config: Mapping[str, str]) -> Iterator[Check]:
    yield _release(config)
    used = config.get("SLURM_CONF", "")
    folder = used.rpartition("/")[0]
    yield _said(
        "slurm.conf's folder",
        folder == facts.etc,
        used or "not told",
        f"the controller reads its scripts from {folder}: say --etc {folder}",
    )
    plugins = config.get("JobSubmitPlugins", "")
    yield _said(
        "JobSubmitPlugins", "lua" in plugins.split(","), plugins or "none",
        "add lua to it; without it no job is looked at",
    )  # fmt: skip
    kind = config.get("SchedulerType", "")
    yield _said("SchedulerType", kind == "sched/backfill", kind, "SchedulerType=sched/backfill")
    kind = config.get("SelectType", "")
    yield _said(
        "SelectType", kind in ("select/cons_tres", "select/cons_res"), kind,
        "SelectType=select/cons_tres; no other was tried",
    )  # fmt: skip
    given = parameters(config)
    has = "ignore_prefer_validation" in given
    yield _said(
        "ignore_prefer_validation", has, "set" if has else "not set",
        "add it to SchedulerParameters: without it a job is refused whose preference cannot be met",
    )  # fmt: skip
    seconds = bf_interval_seconds(given)
    yield _said(
        "bf_interval", seconds <= BF_INTERVAL_MOST_SECONDS, f"{seconds} s",
        "bf_interval=5 in SchedulerParameters: so long a job waits where its preference is busy",
    )  # fmt: skip
    yield _prolog(facts, config)
    if facts.wants_burst_buffer:
        kind = config.get("BurstBufferType", "")
        yield _said(
            "BurstBufferType", kind == "burst_buffer/lua", kind or "none",
            "BurstBufferType=burst_buffer/lua",
        )  # fmt: skip


def _release(config: Mapping[str, str]) -> Check:
    told = config.get("SLURM_VERSION", "not told")
    release = parse_release(told)
    if release is None or release[:2] < _OLDEST:
        return _said(
            "Slurm release", False, told, "22.05 is the first whose jobs can have a preference"
        )
    note = ""
    if release < _ARRAYS_SINCE:
        note = "; job arrays are left alone before 22.05.9"
    if release[:2] > _NEWEST:
        note = f"; newer than what is supported ({_NEWEST[0]}.{_NEWEST[1]:02})"
    return _said("Slurm release", True, told + note, "")


def bf_interval_seconds(given: Sequence[str]) -> int:
    """What the backfill scheduler waits between two rounds; the default where it is not set."""
    seconds = _BF_INTERVAL_DEFAULT_SECONDS
    for each in given:
        key, _, value = each.partition("=")
        if key == "bf_interval" and value.isascii() and value.isdigit():
            seconds = int(value)
    return seconds


def _prolog(facts: Facts, config: Mapping[str, str]) -> Check:
    programs = values(config, "PrologSlurmctld")
    calls = [each for each in programs if facts.prolog_path in facts.prologs.get(each, "")]
    if programs and facts.prolog_path not in programs and not calls:
        to_do = f"call {facts.prolog_path} from {programs[0]}"
    else:
        to_do = f"PrologSlurmctld={facts.prolog_path}; without it no data is warmed"
    return _said(
        "PrologSlurmctld",
        facts.prolog_path in programs or bool(calls),
        ", ".join(programs) or "none",
        to_do,
    )


def _plugstack(facts: Facts) -> Check:
    lines = [line.split() for line in (facts.plugstack or "").splitlines()]
    ours = [
        words for words in lines
        if len(words) > 1 and words[1].rpartition("/")[2] == SPANK_FILE
    ]  # fmt: skip
    if ours and ours[0][0] == "required":
        # Where the file is not, a required plugin fails every command and job.
        return _said("plugstack.conf", False, " ".join(ours[0]), "say optional, not required")
    # A bare name is looked for in PluginDir.
    return _said(
        "plugstack.conf",
        bool(ours) and ours[0][:2] in (["optional", facts.spank_path], ["optional", SPANK_FILE]),
        " ".join(ours[0]) if ours else "has no line of ours",
        f"optional {facts.spank_path}; without it there is no --dataset",
    )


def _nodes(facts: Facts, config: Mapping[str, str] | None) -> Iterator[Check]:
    if facts.features is None:
        yield Check(
            name="node features", state="unknown", found="not told",
            to_do="needs a running controller",
        )  # fmt: skip
        return
    lacking = [node for node, features in facts.features.items() if node not in features]
    yield _said(
        "nodes' own names",
        not lacking,
        _among(lacking, len(facts.features), "lack it"),
        "give each node its own name as a feature",
    )
    release = None if config is None else parse_release(config.get("SLURM_VERSION", ""))
    lacks = lacks_common(facts, release)
    yield _said(
        "a feature of all nodes", not lacks, "none" if lacks else "as this release needs",
        f"give each node the feature {COMMON_FEATURE}: from 24.11 on jobs of several nodes need it",
    )  # fmt: skip
    rackless = [node for node in facts.features if node not in facts.racks]
    if rackless:
        yield _said(
            "nodes' racks",
            False,
            _among(rackless, len(facts.features), "are in no rack known here"),
            "say racks by --rack NAME=NODES, or let topology.conf say them",
        )
        return
    lacking = [
        node for node, features in facts.features.items() if facts.racks[node] not in features
    ]
    yield _said(
        "nodes' racks",
        not lacking,
        _among(lacking, len(facts.features), "lack it"),
        "give each node its rack as a feature",
    )


def _among(nodes: Sequence[str], of: int, what: str) -> str:
    if not nodes:
        return f"all {of} have it"
    more = ", …" if len(nodes) > _NAMED_MOST else ""
    return f"{len(nodes)} of {of} {what}: {', '.join(nodes[:_NAMED_MOST])}{more}"


def _folders(facts: Facts, config: Mapping[str, str] | None) -> Iterator[Check]:
    user = None if config is None else slurm_user(config)
    for folder in facts.folders:
        yield _folder(folder, user)


def _folder(folder: Folder, user: tuple[str, int] | None) -> Check:
    name = f"folder {folder.path.rpartition('/')[2]}"
    found = f"{folder.path}, {folder.mode:04o}, {folder.file_system}"
    if folder.owner_id is None:
        owner = "SlurmUser" if user is None else user[0]
        return _said(
            name, False, f"no {folder.path}",
            f"start feedrack-affinity.service, or `install -d -m 0700 -o {owner} {folder.path}`",
        )  # fmt: skip
    if _REMOTE.match(folder.file_system):
        return _said(name, False, found, "let it be on a local disk or a tmpfs of this host")
    if folder.mode & 0o077:
        return _said(name, False, found, f"chmod 0700 {folder.path}: others have no business in it")
    if user is None:
        return Check(
            name=name, state="unknown", found=found, to_do="whose it must be, the controller tells"
        )
    if folder.owner_id != user[1]:
        return _said(
            name, False, f"{found}, of user {folder.owner_id}", f"chown {user[0]} {folder.path}"
        )
    return _said(
        name, folder.reachable, found, f"let {user[0]} pass the folders above {folder.path}"
    )
