"""What pyslurm tells of Slurm, for whoever started this process: the only place that imports it.

    python -m scheduler_plugin.slurm.reading

pyslurm holds Python's lock for as long as it waits for the controller, so that beside it no other
thread of its process runs; and what is amiss in C ends the process. Here both cost the daemon
nothing. Of the project this imports nothing, so that any Python will do that has pyslurm.

In: `nodes` or `jobs`, a line each. Out, for each: HEAD and what it announces, either a document of
the shape that `scontrol show nodes --json` and `squeue --json` have, with no more in it than
`scheduler_plugin.slurm.records` reads, or why there is none. The first answer comes unasked: the
release of pyslurm's. The end of the input is the end of the process.
"""

import json
import os
import pwd
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

# Whether it went well, and how many bytes follow.
HEAD = struct.Struct(">?Q")


def main() -> int:
    # Slurm's library and whatever it loads may print; the answers are to have a pipe of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        import pyslurm
    except ImportError as error:
        _say(answers, str(error), well=False)
        return 1
    _say(answers, str(pyslurm.__version__))
    questions: dict[str, Callable[[Any], object]] = {"nodes": _nodes, "jobs": _jobs}
    for line in sys.stdin:
        try:
            text = json.dumps(questions[line.strip()](pyslurm))
        except Exception as error:
            # Whatever it is, who asked is told.
            _say(answers, f"{type(error).__name__}: {error}", well=False)
        else:
            _say(answers, text)
    return 0


def _say(answers: BinaryIO, text: str, *, well: bool = True) -> None:
    body = text.encode("utf-8", "replace")
    answers.write(HEAD.pack(well, len(body)) + body)
    answers.flush()


def _nodes(pyslurm: Any) -> object:
    return {
        "nodes": [
            {
                "name": node.name,
                "state": node.state or "",
                "features": node.available_features or [],
                "partitions": node.partitions or [],
                "cpus": node.total_cpus or 1,
                "alloc_cpus": node.allocated_cpus or 0,
            }
            for node in pyslurm.Nodes.load().values()
        ]
    }


def _jobs(pyslurm: Any) -> object:
    users: dict[int, str] = {}
    # Before 25.11 pyslurm does not tell it.
    prefers = hasattr(pyslurm.Job, "preferred_features")
    return {"jobs": [_job(each, users, prefers) for each in pyslurm.Jobs.load().values()]}


def _job(job: Any, users: dict[int, str], prefers: bool) -> object:
    uid = job.user_id
    if uid not in users:
        users[uid] = _user_name(uid)
    found = {
        "job_id": job.id,
        "job_state": job.state,
        "user_name": users[uid],
        "comment": _text(job, "comment"),
        "admin_comment": _text(job, "admin_comment"),
        "features": _text(job, "constraints"),
        "partition": _text(job, "partition"),
        "start_time": job.start_time,
        "eligible_time": job.eligible_time,
        "nodes": _text(job, "allocated_nodes"),
        "scheduled_nodes": _text(job, "scheduled_nodes"),
        "state_reason": _text(job, "state_reason"),
        "burst_buffer": _text(job, "burst_buffer"),
    }
    return found | {"prefer": _text(job, "preferred_features")} if prefers else found


def _text(job: Any, name: str) -> str:
    try:
        value = getattr(job, name)
    except UnicodeDecodeError:
        # Users write what they like, and of no text there is nothing to be read.
        return ""
    # pyslurm takes what has commas in it for a list.
    return ",".join(value) if isinstance(value, list) else value or ""


def _user_name(uid: int | None) -> str:
    try:
        return pwd.getpwuid(uid).pw_name if uid is not None else ""
    except KeyError:
        # Gone meanwhile: nobody that could be told of anything.
        return ""


if __name__ == "__main__":
    sys.exit(main())
