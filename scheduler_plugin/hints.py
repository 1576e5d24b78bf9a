"""What a job asked for, and what was done about it at its submission: read off the comment that
`site/job_submit.lua` leaves with the job, else off the user's own. Pure.

    feedrack did=preferred prefer=[n4|rack2|all] dataset=s3://train/imagenet
    feedrack did=preferred prefer=… begin=… wait=… places=[n4|rack2] constraint= dataset=…
    feedrack did=nothing why=no-ranking dataset=s3://train/imagenet

The second is of a job that waits for its data: when it may start at the earliest, until when it is
bound to its places (both in seconds since 1970), these as a constraint, and the one it came with.
"""

import re

from msgspec import Struct

from scheduler_plugin.dataset import BadHint, Dataset, decode_value, parse_hint
from scheduler_plugin.slurm.model import Job

_OURS = re.compile(r"(?:^|\s)feedrack(( [a-z]+=\S*)+)")
# What Slurm takes as a constraint, and nothing that would be another word of a command.
_FEATURES = re.compile(r"[A-Za-z0-9_.:=&|*\[\]-]{0,1024}")
_THEIRS = re.compile(r"(?:^|[\s;])dataset=([^\s;]+)")


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
    ours = list(_OURS.finditer(job.admin_comment))
    if ours:
        return _read(ours[-1][1])
    theirs = _THEIRS.search(job.comment)
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
        places, constraint = values.get("places", ""), values.get("constraint", "")
        if (
            "wait" in values
            and "begin" in values
            and places
            and _FEATURES.fullmatch(places)
            and _FEATURES.fullmatch(constraint)
        ):
            wait = Wait(float(values["begin"]), float(values["wait"]), places, constraint)
    except ValueError:
        return None
    return Hint(datasets, values.get("prefer", ""), wait)
