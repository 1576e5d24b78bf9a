"""What a job asked for, and what was done about it at its submission: read off the comment that
`site/job_submit.lua` leaves with the job, else off the user's own. Pure.

    feedrack did=preferred prefer=[n4|rack2|all] dataset=s3://train/imagenet
    feedrack did=preferred prefer=… begin=… wait=… places=[n4|rack2] constraint= dataset=…
    feedrack did=nothing why=no-ranking dataset=s3://train/imagenet

The second is of a job that waits for its data: when it may start at the earliest, until when it is
bound to its places (both in seconds since 1970), these as a constraint, and the one it came with.
"""

import re
from functools import lru_cache

from msgspec import Struct

from scheduler_plugin.dataset import BadHint, Dataset, decode_value, parse_hint
from scheduler_plugin.slurm.model import Job

_OURS = re.compile(r"(?:^|\s)feedrack(( [a-z]+=\S*)+)")
_THEIRS = re.compile(r"(?:^|[\s;])dataset=([^\s;]+)")
# To take one apart takes 20 µs, and each look at the queue does it several times a job.
_KEPT = 2**14
# What our script writes, and no more: an operator may have changed it, and all of it goes to Slurm.
_MOMENT = re.compile(r"[0-9]{1,10}")
_FEATURES = re.compile(r"[A-Za-z0-9_.:=&|\[\]-]{0,1024}")


class Wait(Struct, frozen=True):
    """A bounded wait for `places`. `constraint`: what the job came with, to be given back."""

    begin: float
    bound: float
    places: str
    constraint: str


class Hint(Struct, frozen=True):
    """The datasets, and the places preferred ("" where nothing was done). `wait`: where one was
    asked for."""

    datasets: tuple[Dataset, ...]
    prefer: str = ""
    wait: Wait | None = None


def hint_of(job: Job) -> Hint | None:
    """None where the job names no dataset, or none that can be one."""
    return _hint_in(job.admin_comment, job.comment)


@lru_cache(_KEPT)
def _hint_in(admin_comment: str, comment: str) -> Hint | None:
    ours = list(_OURS.finditer(admin_comment))
    if ours:
        return _read(ours[-1][1])
    theirs = _THEIRS.search(comment)
    if theirs is None:
        return None
    try:
        return Hint(parse_hint(theirs[1]))
    except BadHint:
        return None


def _read(text: str) -> Hint | None:
    values = dict(word.split("=", 1) for word in text.split())
    try:
        datasets = parse_hint(decode_value(values.get("dataset", "")))
        wait = None
        if "wait" in values and "begin" in values and values.get("places"):
            wait = Wait(
                _moment(values["begin"]),
                _moment(values["wait"]),
                _features(values["places"]),
                _features(values.get("constraint", "")),
            )
    except ValueError:
        return None
    return Hint(datasets, values.get("prefer", ""), wait)


def _moment(text: str) -> float:
    """Seconds since 1970. ValueError."""
    if not _MOMENT.fullmatch(text):
        raise ValueError(f"no moment: {text!r}")
    return float(text)


def _features(text: str) -> str:
    """ValueError."""
    if not _FEATURES.fullmatch(text):
        raise ValueError(f"no features: {text!r}")
    return text
