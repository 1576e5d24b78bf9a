"""What the simulator runs: datasets and a week of jobs, in the shape of a public trace. Pure.

The shape is that of Helios, four GPU clusters of SenseTime from April to September 2020 (Hu et al.,
"Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters",
SC '21; data: github.com/S-Lab-System-Group/HeliosData, CC BY 4.0). Only numbers of it are here:
submissions by hour, the distributions of run times and of GPUs by job and by GPU time, all weighted
by the clusters' jobs. They were read off the vector figures published with the paper's artifact
(github.com/S-Lab-System-Group/HeliosArtifact, MIT), and the weight of weekends off its sequence of
the cluster Earth (11 to 31 May 2020).

Of the trace's jobs only those of half an hour and more are made: of those shorter there are five
times as many, for a twentieth of the GPU time. None runs for more than two days, so that a week is
one. What the trace does not tell is stated here: which dataset a job reads (Zipf), how large these
are and how fast they are read (both log-uniform).
"""

import math
import random
from bisect import bisect_left
from itertools import accumulate

from msgspec import Struct

GB = 10**9
TB = 10**12
HOUR = 3600.0
DAY = 24 * HOUR

# Submissions of each hour of a day, beside the mean.
BY_HOUR = (
    0.90, 0.84, 0.68, 0.60, 0.56, 0.56, 0.55, 0.51, 0.56, 0.82, 1.12, 1.24,
    1.20, 1.22, 1.33, 1.43, 1.49, 1.33, 1.10, 1.20, 1.31, 1.22, 1.14, 1.09,
)  # fmt: skip
# A day of a weekend beside one of the week.
WEEKEND = 0.56
# The part of the jobs that ran for at most 1, 2, 4, … seconds.
RUN_TIMES = (
    0.040, 0.049, 0.064, 0.077, 0.107, 0.161, 0.249, 0.378, 0.566, 0.676, 0.752,
    0.841, 0.875, 0.908, 0.944, 0.963, 0.978, 0.989, 0.995, 0.999, 0.9999, 1.0,
)  # fmt: skip
# GPUs, the part of the jobs that took so many, and their part of the GPU time. 16 stands for 9 to
# 16, and so on; 128 for all that took more than 64.
BY_GPUS = (
    (1, 0.722, 0.065),
    (2, 0.026, 0.016),
    (4, 0.057, 0.054),
    (8, 0.142, 0.286),
    (16, 0.030, 0.196),
    (32, 0.016, 0.240),
    (64, 0.004, 0.079),
    (128, 0.003, 0.065),
)
SHORTEST_SECONDS = 1800.0
LONGEST_SECONDS = 2 * DAY
SMALLEST_BYTES = 10 * GB
LARGEST_BYTES = 20 * TB
# What one GPU reads of a dataset, in bytes a second: from tokens to uncompressed images.
SLOWEST = 0.02 * GB
FASTEST = 0.5 * GB
# A dataset is cached and evicted in this many parts, all of one size.
PARTS = 32


class Data(Struct, frozen=True):
    """A dataset. `gpu_bytes_per_second`: what each GPU of a job reads of it while it is not kept
    waiting."""

    number: int
    size_bytes: float
    gpu_bytes_per_second: float

    @property
    def part_bytes(self) -> float:
        return self.size_bytes / PARTS


class Work(Struct, frozen=True):
    """A job: submitted at `submitted`, it takes `gpus` for `seconds` where it never waits for its
    data. `first_part`: where it begins in the dataset, should it not read all of it."""

    number: int
    submitted: float
    gpus: int
    seconds: float
    data: Data
    first_part: int = 0

    @property
    def bytes_per_second(self) -> float:
        """What it reads while it is not kept waiting."""
        return self.gpus * self.data.gpu_bytes_per_second

    @property
    def passes(self) -> float:
        """How often it reads the dataset, such as 0.2 or 3.5."""
        return self.seconds * self.bytes_per_second / self.data.size_bytes

    @property
    def parts(self) -> int:
        """The parts that it reads at all, as bits."""
        count = min(PARTS, math.ceil(self.passes * PARTS))
        if count == PARTS:
            return (1 << PARTS) - 1
        bits = ((1 << count) - 1) << self.first_part
        return (bits | bits >> PARTS) & ((1 << PARTS) - 1)


class Demand(Struct, frozen=True, kw_only=True):
    """What is asked of the cluster. `load`: the GPU time of all jobs over that of all GPUs until
    the last is submitted; `skew`: the exponent of Zipf's law by which jobs choose datasets."""

    gpus: int
    hours: float
    load: float
    skew: float
    datasets: int
    sizes: float = 1.0
    seed: int = 6


def make_datasets(demand: Demand) -> list[Data]:
    """The datasets, the most wanted first; `demand.sizes` times as large as stated."""
    rng = random.Random(f"datasets {demand.seed}")
    return [
        Data(
            number,
            demand.sizes * _log_uniform(rng, SMALLEST_BYTES, LARGEST_BYTES),
            _log_uniform(rng, SLOWEST, FASTEST),
        )
        for number in range(demand.datasets)
    ]


def make_jobs(demand: Demand) -> list[Work]:
    """The jobs in the order in which they are submitted, their number being their place."""
    rng = random.Random(f"jobs {demand.seed}")
    datasets = make_datasets(demand)
    wanted = list(accumulate(1 / (each + 1) ** demand.skew for each in range(demand.datasets)))
    sizes = list(accumulate(jobs for _, jobs, _ in BY_GPUS))
    stretch = stretches()
    made: list[tuple[int, float]] = []
    left = demand.load * demand.gpus * demand.hours * HOUR
    while left > 0:
        gpus, _, _ = BY_GPUS[bisect_left(sizes, rng.random() * sizes[-1])]
        seconds = min(LONGEST_SECONDS, run_time(rng.random()) * stretch[gpus])
        if seconds >= SHORTEST_SECONDS and gpus <= demand.gpus:
            made.append((gpus, seconds))
            left -= gpus * seconds
    times = sorted(_submission(rng, demand.hours) for _ in made)
    return [
        Work(
            number,
            at,
            gpus,
            seconds,
            datasets[bisect_left(wanted, rng.random() * wanted[-1])],
            rng.randrange(PARTS),
        )
        for number, (at, (gpus, seconds)) in enumerate(zip(times, made, strict=True))
    ]


def run_time(quantile: float) -> float:
    """The run time, in seconds, that this part of the trace's jobs does not exceed. Between the
    figures that are known its logarithm is taken for even."""
    place = min(bisect_left(RUN_TIMES, quantile), len(RUN_TIMES) - 1)
    below = RUN_TIMES[place - 1] if place else 0.0
    within = min(1.0, (quantile - below) / (RUN_TIMES[place] - below))
    return math.pow(2.0, place - 1 + within)


def stretches() -> dict[int, float]:
    """By GPUs, how much longer such jobs ran than all did, in the mean."""
    means = {gpus: time / (jobs * gpus) for gpus, jobs, time in BY_GPUS}
    mean = sum(jobs * means[gpus] for gpus, jobs, _ in BY_GPUS)
    mean /= sum(jobs for _, jobs, _ in BY_GPUS)
    return {gpus: each / mean for gpus, each in means.items()}


def _submission(rng: random.Random, hours: float) -> float:
    # The first day is a Monday. Tried until one is taken, so that any number of hours will do.
    while True:
        at = rng.random() * hours
        weight = BY_HOUR[int(at) % 24] * (WEEKEND if int(at / 24) % 7 >= 5 else 1.0)
        if rng.random() * max(BY_HOUR) < weight:
            return at * HOUR


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return least * math.pow(most / least, rng.random())
