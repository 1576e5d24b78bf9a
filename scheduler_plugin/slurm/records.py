"""What Slurm's commands print as JSON, read whatever the release. Pure.

Of 22.05 numbers are numbers, 0 where there is none, states and features are text, and nodes come
from `sinfo`. Since 23.02 numbers are {"set", "infinite", "number"}, states and features lists, and
nodes come from `scontrol show nodes`. Fields that are not used here are not looked at.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct

from scheduler_plugin.slurm.model import Host, Job, JobState, SlurmUnavailable

# Where a host has one of these, nothing is started there.
_UNUSABLE = frozenset(
    {
        "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVALID",
        "INVALID_REG", "MAINT", "MAINTENANCE", "NO_RESPOND", "NOT_RESPONDING", "REBOOT",
        "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "UNKNOWN",
    }
)  # fmt: skip
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_THERE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT"})
# A list of hosts that stands for more of them is not believed.
_MOST_HOSTS = 100_000
_OUTSIDE_COMMA = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_SPAN = re.compile(r"(\d{1,12})-(\d{1,12})(?:/\d+)?")


class _Number(Struct):
    number: float = 0
    set: bool = False
    infinite: bool = False


_MaybeNumber = float | _Number | None


class _RawNode(Struct):
    name: str
    state: str | list[str] = ""
    state_flags: list[str] = []
    features: str | list[str] = ""
    partitions: list[str] = []
    cpus: int = 1
    alloc_cpus: int = 0


class _Nodes(Struct):
    nodes: list[_RawNode]


class _RawJob(Struct):
    job_id: int
    job_state: str | list[str]
    user_name: str | None = ""
    comment: str | None = ""
    admin_comment: str | None = ""
    features: str | None = ""
    prefer: str | None = ""
    partition: str | None = ""
    start_time: _MaybeNumber = 0
    eligible_time: _MaybeNumber = 0
    nodes: str | None = ""
    scheduled_nodes: str | None = None
    state_reason: str | None = ""
    burst_buffer: str | None = ""


class _Jobs(Struct):
    jobs: list[_RawJob]


_decode_nodes = msgspec.json.Decoder(_Nodes, strict=False).decode
_decode_jobs = msgspec.json.Decoder(_Jobs, strict=False).decode


def read_hosts(raw: bytes) -> list[Host]:
    """The nodes. SlurmUnavailable where it is something else."""
    return [_host(each) for each in _read(raw, _decode_nodes).nodes]


def read_jobs(raw: bytes) -> list[Job]:
    """The jobs that wait or run. SlurmUnavailable where it is something else."""
    return [_job(each) for each in _read(raw, _decode_jobs).jobs]


def lacks_expected_hosts(raw: bytes) -> bool:
    """Whether this release's `squeue` does not say where backfill would start a job."""
    return b'"scheduled_nodes"' not in raw


def lacks_preferences(raw: bytes) -> bool:
    """Whether these records, of an older pyslurm, do not say what jobs prefer."""
    return b'"prefer"' not in raw


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts that `n[1-3,7]` stands for; none where it cannot be read."""
    if not text or "@" in text or _count(text) > _MOST_HOSTS:
        return ()
    try:
        return tuple(map(str, NodeSet(text)))
    except NodeSetException:
        return ()


def default_partition(lines: Iterable[str]) -> str:
    """The partition that `sinfo -o %P` marks; "" where there is none."""
    return next((line.rstrip("*") for line in lines if line.endswith("*")), "")


def release_of(text: str) -> tuple[int, int, int]:
    """The release in `slurm 24.11.5`. SlurmUnavailable."""
    numbers = text.strip().rpartition(" ")[2].split("-")[0].split(".")
    try:
        year, month, *rest = map(int, numbers)
    except ValueError as error:
        raise SlurmUnavailable(f"no release of Slurm's: {text.strip()[:100]!r}") from error
    return year, month, rest[0] if rest else 0


def _count(text: str) -> int:
    """About how many hosts a list stands for, found without making them."""
    total = 0
    for name in _OUTSIDE_COMMA.split(text):
        count = 1
        for ranges in _BRACKETS.findall(name):
            spans = [_SPAN.fullmatch(each) for each in ranges.split(",")]
            count *= sum(max(1, int(span[2]) - int(span[1]) + 1) if span else 1 for span in spans)
        total += count
    return total


def _read(raw: bytes, decode: Any) -> Any:
    # What users wrote into comments need not be UTF-8, and JSON made of it then is none.
    text = raw.decode("utf-8", "replace")
    try:
        return decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SlurmUnavailable(f"what Slurm says cannot be read: {error}") from error


def _host(raw: _RawNode) -> Host:
    states = _words(raw.state) | _words(raw.state_flags)
    return Host(
        raw.name,
        frozenset(_names(raw.features)),
        tuple(raw.partitions),
        cpus=max(1, raw.cpus),
        load=min(1.0, max(0.0, raw.alloc_cpus / max(1, raw.cpus))),
        usable=not states & _UNUSABLE,
    )


def _job(raw: _RawJob) -> Job:
    state = _state(_words(raw.job_state))
    where = raw.scheduled_nodes if state == "pending" else raw.nodes
    return Job(
        id=raw.job_id,
        state=state,
        user=raw.user_name or "",
        comment=raw.comment or "",
        admin_comment=raw.admin_comment or "",
        features=raw.features or "",
        prefer=raw.prefer or "",
        partition=raw.partition or "",
        start=_seconds(raw.start_time),
        eligible=_seconds(raw.eligible_time),
        hosts=expand_hosts(where or ""),
        reason=raw.state_reason or "",
        burst_buffer=raw.burst_buffer or "",
    )


def _state(words: frozenset[str]) -> JobState:
    if words & _WAITING:
        return "pending"
    # One that is on its way out is gone, whatever else it is.
    if words & _THERE and "COMPLETING" not in words:
        return "running"
    return "ended"


def _words(value: str | Sequence[str]) -> frozenset[str]:
    texts = [value] if isinstance(value, str) else value
    return frozenset(word for text in texts for word in text.upper().replace("+", " ").split())


def _names(value: str | Sequence[str]) -> Iterable[str]:
    texts = [value] if isinstance(value, str) else value
    return (name for text in texts for name in text.split(",") if name)


def _seconds(value: _MaybeNumber) -> float:
    if isinstance(value, _Number):
        return float(value.number) if value.set and not value.infinite else 0.0
    return float(value or 0)
