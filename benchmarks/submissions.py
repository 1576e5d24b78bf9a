"""`python -m benchmarks.submissions`: what the plugin costs the controller, on a real slurmctld.

Five controllers side by side: without job_submit; the same with jobs that bring the preference we
would give them; with a script that does nothing; with ours over 10,000 datasets that are ranked;
with ours timed from within. They take turns, so that whatever else the machine does meets all of
them. Jobs are submitted held: none ever runs.

The controller's own time for a submission, of which it has its locks for the most part, is what
`sdiag` says of REQUEST_SUBMIT_BATCH_JOB; the script's own is what a clock of the process says
around it; and the script's outside Slurm is that of `submissions.lua` in lua5.1.
"""

import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from msgspec import Struct
from rich.console import Console

from benchmarks import report
from benchmarks.server import work_folder
from scheduler_plugin.dataset import Dataset, file_name
from scheduler_plugin.ranking import Place, Ranking
from scheduler_plugin.ranking_file import Entry, Readers, Rules, render
from tests.slurm.lab import SlurmLab
from tests.slurm.place import obstacle

_SITE = Path(__file__).parents[1] / "scheduler_plugin" / "site"
_LUA = Path(__file__).with_name("submissions.lua")
_NOTHING = """
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
_TIMED = """
assert(loadfile("{script}"))()
local submit = slurm_job_submit
function slurm_job_submit(job, partitions, user)
   local began = os.clock()
   local code = submit(job, partitions, user)
   local took = os.clock() - began
   job.admin_comment = string.format("%s us=%d", job.admin_comment or "", took * 1e6)
   return code
end
return slurm.SUCCESS
"""
_WITHOUT, _EMPTY, _OURS, _CLOCKED = "no job_submit", "an empty script", "ours", "ours, timed"
_BY_HAND = "no job_submit, the preference given by hand"
# That of `submissions.lua`'s jobs.
_GROUP = 1000
_PREFERENCE = "[n1|n2|n3|n4|rack1|rack2]"
_RPC = re.compile(r"REQUEST_SUBMIT_BATCH_JOB.*?count:(\d+)\s+ave_time:(\d+)")


class Plan(Struct, frozen=True, kw_only=True):
    """How much: `rounds` of `jobs` submissions to each controller; alone, `lua_jobs` of each kind,
    over so many `datasets` and so many with a `large` ranking."""

    rounds: int = 7
    jobs: int = 40
    datasets: int = 10_000
    lua_jobs: int = 50_000
    large: int = 1000


FULL = Plan()
QUICK = Plan(rounds=2, jobs=15, datasets=1000, lua_jobs=5000, large=100)


class Round(Struct, frozen=True):
    """One round of one controller."""

    per_second: float
    controller_us: float


class Controlled(Struct, frozen=True, kw_only=True):
    """One controller's rounds. `script_us`: the script's own time of each job, where timed."""

    way: str
    rounds: Sequence[Round]
    script_us: Sequence[int] = ()
    preferred: int = 0


class Alone(Struct, frozen=True):
    """The script outside Slurm."""

    what: str
    us: float
    least_us: float
    preferred: int


def write_rankings(folder: Path, datasets: int, large: int) -> None:
    """A file for each of so many datasets, good for an hour: small ones in `train`, and in buckets
    of their own `large` for a thousand readers and `large` with places in 14 partitions."""
    folder.mkdir()
    everybody = Readers(everybody=True)
    many = Readers(users=frozenset(range(100_000, 100_988)), groups=frozenset({_GROUP}))
    _write(folder, "train", datasets, ["main"], everybody)
    _write(folder, "read-by-many", large, ["main"], many)
    partitions = ["main", *(f"part{number:02}" for number in range(2, 15))]
    _write(folder, "in-many-partitions", large, partitions, everybody)


def _write(
    folder: Path, bucket: str, datasets: int, partitions: Sequence[str], readers: Readers
) -> None:
    nodes = [Place(f"n{number}", 1, 2, 9.0, f"rack{(number + 1) // 2}") for number in range(1, 5)]
    racks = [Place(f"rack{number}", 2, 2, 7.0) for number in (1, 2)]
    names = ("*", *partitions)
    sizes = dict.fromkeys(names, 4)
    rules = Rules(default_partition="main", common_needed=False, sizes=sizes)
    ranking = Ranking(dict.fromkeys(names, (*nodes, *racks)))
    for number in range(datasets):
        dataset = Dataset(bucket, f"d{number:05}")
        name = file_name(dataset)
        assert name is not None
        expires = int(time.time()) + 3500
        text = render(dataset, [Entry(ranking, readers)], expires=expires, rules=rules)
        (folder / name).write_bytes(text)


def write_script(path: Path, rankings: Path) -> Path:
    """Ours, over a folder of rankings."""
    script = (_SITE / "job_submit.lua").read_text().replace("@RANKINGS@", str(rankings))
    path.write_text(script.replace("@MOST_WAIT_MINUTES@", "1440"))
    return path


def outside(script: Path, plan: Plan) -> list[Alone]:
    """The script in an interpreter of its own."""
    numbers = map(str, (plan.lua_jobs, plan.datasets, plan.large))
    said = subprocess.run(
        ["lua5.1", str(_LUA), str(script), *numbers],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    return [
        Alone(what, float(us), float(least), int(preferred)) for what, us, least, preferred in rows
    ]


class Bench:
    """The controllers, each in a lab of its own."""

    def __init__(self, plan: Plan, base: Path, console: Console) -> None:
        self._plan = plan
        self._base = base
        self._console = console
        self._next = 0

    def run(self) -> tuple[str, list[Alone], list[Controlled]]:
        """Slurm's release, the script alone, and the controllers."""
        plan, rankings = self._plan, self._base / "rankings"
        self._console.print(f"{plan.datasets} rankings", style="dim")
        write_rankings(rankings, plan.datasets, plan.large)
        script = write_script(self._base / "ours.lua", rankings)
        alone = outside(script, plan)
        scripts = {
            _WITHOUT: None,
            _BY_HAND: None,
            _EMPTY: _NOTHING,
            _OURS: script.read_text(),
            _CLOCKED: _TIMED.format(script=script),
        }
        with ExitStack() as stack:
            labs: dict[str, SlurmLab] = {}
            for way, text in scripts.items():
                self._console.print(f"a controller: {way}", style="dim")
                lab = SlurmLab()
                stack.callback(lab.stop)
                if text is not None:
                    (lab.etc / "job_submit.lua").write_text(text)
                labs[way] = lab.start()
            rounds: dict[str, list[Round]] = {way: [] for way in labs}
            for number in range(plan.rounds):
                self._console.print(f"round {number + 1} of {plan.rounds}", style="dim")
                ways = list(labs) if number % 2 == 0 else list(labs)[::-1]
                for way in ways:
                    rounds[way].append(self._round(way, labs[way]))
            found = [self._controlled(way, lab, rounds[way]) for way, lab in labs.items()]
            release = ".".join(map(str, labs[_WITHOUT].release))
        return release, alone, found

    def _round(self, way: str, lab: SlurmLab) -> Round:
        lab.run("sdiag", "--reset")
        more = [f"--prefer={_PREFERENCE}"] if way == _BY_HAND else []
        began = time.monotonic()
        for _ in range(self._plan.jobs):
            dataset = f"s3://train/d{self._next * 7919 % self._plan.datasets:05}"
            self._next += 1
            lab.sbatch("--hold", f"--comment=dataset={dataset}", *more)
        seconds = time.monotonic() - began
        said = _RPC.search(lab.sdiag())
        if said is None or int(said[1]) != self._plan.jobs:
            raise RuntimeError(f"sdiag tells of other submissions:\n{lab.sdiag()}")
        return Round(self._plan.jobs / seconds, float(said[2]))

    def _controlled(self, way: str, lab: SlurmLab, rounds: Sequence[Round]) -> Controlled:
        jobs = lab.jobs()
        comments = [each.get("AdminComment", "") for each in jobs]
        return Controlled(
            way=way,
            rounds=rounds,
            script_us=[int(said[1]) for each in comments if (said := re.search(r"us=(\d+)", each))],
            preferred=sum("did=preferred" in each for each in comments),
        )


def tables(alone: Sequence[Alone], found: Sequence[Controlled], plan: Plan) -> list[str]:
    """What the script takes alone, and what the controllers take."""
    lines = [
        "## job_submit.lua alone",
        "",
        f"In lua5.1, {plan.lua_jobs:,} jobs each over {plan.datasets:,} rankings of 0.3 KB, or "
        f"{plan.large:,} of 7 KB with 990 readers or 1.4 KB with 14 partitions; jobs are tables.",
        "",
        "| job | µs of CPU, median | least | given a preference |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {each.what} | {each.us:.1f} | {each.least_us:.1f} | {each.preferred:,} |"
            for each in alone
        ),
        "",
        "## In the controller",
        "",
        f"{plan.rounds} rounds of {plan.jobs} held jobs, one `sbatch` after the other; medians of "
        "the rounds. The controller's time is from `sdiag`; its difference is within rounds.",
        "",
        "| | submissions/s | controller µs | more than without | script's own µs, median "
        "| least | p99 | given a preference |",
        f"| --- |{' ---: |' * 7}",
    ]
    plain = found[0].rounds
    for each in found:
        more = statistics.median(
            one.controller_us - other.controller_us
            for one, other in zip(each.rounds, plain, strict=True)
        )
        own = sorted(each.script_us)
        script = " |  | "
        if own:
            script = f"{own[len(own) // 2]} | {own[0]} | {own[len(own) * 99 // 100]}"
        lines.append(
            f"| {each.way} | {statistics.median(one.per_second for one in each.rounds):.1f} "
            f"| {statistics.median(one.controller_us for one in each.rounds):,.0f} | {more:+,.0f} "
            f"| {script} | {each.preferred:,} |"
        )
    return [*lines, ""]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Less of it; results beside the full ones.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, folder: Path | None) -> None:
    """Measure what the plugin costs slurmctld."""
    where = report.machine()
    console = Console(stderr=True)
    command = shlex.join(["python", "-m", "benchmarks.submissions", *sys.argv[1:]])
    plan = QUICK if quick else FULL
    missing = obstacle() or (None if shutil.which("lua5.1") else "no lua5.1")
    if missing:
        print(f"Submissions are not measured: {missing}")
        return
    with work_folder(folder) as work:
        release, alone, found = Bench(plan, Path(work), console).run()
    notes = (
        "every job names one of the datasets in its comment, each another one",
        "the difference between controllers is of whole submissions, and noisy where the machine "
        "has other things to do; the script's own time is the process's CPU time around it, that "
        "of its other threads too; where the machine is busy the least is nearest to what it takes",
        "a script that is called now and then finds the processor's caches cold, as the rows after "
        "a rest show: so it is in these controllers, between two `sbatch`",
    )
    lines = report.preamble("Submissions", where, (f"Slurm {release}",), notes, command)
    lines += tables(alone, found, plan)
    print("\n".join(lines))
    report.write(
        "submissions-quick" if quick else "submissions",
        lines,
        {"command": command, "machine": where, "plan": plan, "alone": alone, "found": found},
    )


if __name__ == "__main__":
    main()
