"""Jobs that wait, and a Slurm of them in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from scheduler_plugin.slurm.model import Host, Job, SlurmUnavailable

PLACES = "[n4|rack2]"


def waiting(id_: int, *, bound: float, is_bound: bool) -> Job:
    """One without a constraint of its own, that was told to wait until `bound`."""
    return Job(
        id=id_,
        state="pending",
        user="alice",
        features=PLACES if is_bound else "",
        eligible=0.0 if is_bound else bound,
        admin_comment=(
            f"feedrack did=preferred prefer={PLACES} begin={bound - 600:.0f} wait={bound:.0f} "
            f"places={PLACES} constraint= dataset=s3://train/imagenet"
        ),
    )


class Queue:
    """Implements Slurm. Of the jobs in `stubborn` no change is accepted; `changed` has the ids of
    the others', in their order."""

    def __init__(self, *jobs: Job, stubborn: Sequence[int] = ()) -> None:
        self.by_id = {job.id: job for job in jobs}
        self.changed: list[int] = []
        self._stubborn = frozenset(stubborn)

    async def release(self) -> tuple[int, int, int]:
        return 24, 11, 5

    async def hosts(self) -> Sequence[Host]:
        return [Host("n4", frozenset({"n4", "rack2"}), ("main",))]

    async def default_partition(self) -> str:
        return "main"

    async def jobs(self, ids: Sequence[int] = ()) -> Sequence[Job]:
        return [job for job in self.by_id.values() if not ids or job.id in ids]

    async def hold(self, job_id: int, features: str, *, start: float) -> None:
        self._change(job_id, features, start)

    async def relax(self, job_id: int, features: str, *, release: bool) -> None:
        self._change(job_id, features, self.by_id[job_id].eligible)

    async def unprefer(self, job_id: int) -> None:
        self.by_id[job_id] = replace(self.by_id[job_id], prefer="")

    def _change(self, job_id: int, features: str, eligible: float) -> None:
        if job_id in self._stubborn:
            raise SlurmUnavailable("scontrol: exit status 1: Invalid feature specification")
        self.by_id[job_id] = replace(self.by_id[job_id], features=features, eligible=eligible)
        self.changed.append(job_id)
