"""The queue of prefetches of a node that has no cluster: in its memory, and gone with it."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from gateway.cluster.jobs import KEPT_SECONDS, MOST_JOBS, MOST_OPEN, Claim, Page, TooManyJobs, Walk
from gateway.cluster.warming import Item, Progress, Spec, State


class _Job(Struct, eq=False):
    number: int
    spec: Spec
    priority: int
    state: State = "running"
    ended_at: float = 0.0
    position: bytes = b""
    next: int = 0
    listed: bool = False
    objects_found: int = 0
    objects_done: int = 0
    objects_failed: int = 0
    bytes_found: int = 0
    bytes_done: int = 0
    bytes_failed: int = 0
    by_rack: dict[str, int] = field(default_factory=dict)
    waiting: deque[Item] = field(default_factory=deque)
    claimed: set[int] = field(default_factory=set)
    # By object, the items left of it; and those of which one has failed.
    left: dict[int, int] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)


class LocalJobs:
    """`Jobs` of one node. `now` is monotonic."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._jobs: dict[str, _Job] = {}
        self._number = 0

    async def create(self, spec: Spec, priority: int) -> str:
        if len(self._running()) >= MOST_JOBS:
            raise TooManyJobs(f"{MOST_JOBS} jobs are running already")
        self._number += 1
        id_ = secrets.token_hex(8)
        self._jobs[id_] = _Job(self._number, spec, priority)
        return id_

    async def all(self) -> list[Progress]:
        self._forget()
        ended = [(id_, job) for id_, job in self._jobs.items() if job.state != "running"]
        ended.sort(key=lambda each: -each[1].ended_at)
        return [_progress(id_, job) for id_, job in (*self._running(), *ended)]

    async def get(self, id_: str) -> Progress | None:
        job = self._jobs.get(id_)
        return _progress(id_, job) if job is not None else None

    async def set_priority(self, id_: str, priority: int) -> bool:
        job = self._jobs.get(id_)
        if job is None or job.state != "running":
            return False
        job.priority = priority
        return True

    async def cancel(self, id_: str) -> bool:
        job = self._jobs.get(id_)
        if job is None or job.state != "running":
            return False
        self._end(job, "cancelled")
        return True

    async def any(self) -> bool:
        return bool(self._running())

    async def runs(self, id_: str) -> bool:
        return id_ in self._jobs and self._jobs[id_].state == "running"

    async def begin(self) -> None:
        """Nothing was claimed by an earlier run."""

    async def claim(self, limit: int) -> list[Claim]:
        found: list[Claim] = []
        for id_, job in self._running():
            while job.waiting and len(found) < limit:
                item = job.waiting.popleft()
                job.claimed.add(item.id)
                found.append(Claim(id_, item))
        return found

    async def finish(self, claim: Claim, *, done_bytes: int, failed_bytes: int) -> None:
        job, item = self._jobs.get(claim.job), claim.item
        if job is None or item.id not in job.claimed:
            return
        job.claimed.remove(item.id)
        job.bytes_done += done_bytes
        job.bytes_failed += failed_bytes
        job.by_rack[item.rack] = job.by_rack.get(item.rack, 0) + done_bytes
        if failed_bytes:
            job.bad.add(item.object_id)
        job.left[item.object_id] -= 1
        if not job.left[item.object_id]:
            del job.left[item.object_id]
            if item.object_id in job.bad:
                job.objects_failed += 1
            else:
                job.objects_done += 1
        self._end_if_through(job)

    async def walk(self, alive: Sequence[str]) -> Walk | None:  # noqa: ARG002 - there is but one
        for id_, job in self._running():
            if not job.listed and len(job.waiting) + len(job.claimed) < MOST_OPEN:
                return Walk(id_, job.spec, job.position, job.next, job.listed, ())
        return None

    async def walked(self, walk: Walk, page: Page) -> None:
        job = self._jobs.get(walk.job)
        if job is None or job.state != "running" or job.position != walk.position or job.listed:
            return
        job.position, job.listed = page.position, page.last
        job.objects_found += page.objects
        job.bytes_found += page.size_bytes
        job.objects_failed += page.failed
        for _, item in page.items:
            job.next = max(job.next, item.id + 1)
            job.waiting.append(item)
            job.left[item.object_id] = job.left.get(item.object_id, 0) + 1
        self._end_if_through(job)

    async def shared_out(self, walk: Walk, items: Sequence[tuple[str, Item]], lost: int) -> None:
        """No other node leaves anything."""

    def _running(self) -> list[tuple[str, _Job]]:
        running = [(id_, job) for id_, job in self._jobs.items() if job.state == "running"]
        return sorted(running, key=lambda each: (-each[1].priority, each[1].number))

    def _end_if_through(self, job: _Job) -> None:
        if job.listed and not job.waiting and not job.claimed:
            self._end(job, "done")

    def _end(self, job: _Job, state: State) -> None:
        job.state, job.ended_at = state, self._now()
        job.waiting.clear()
        job.claimed.clear()
        job.left.clear()
        job.bad.clear()
        self._forget()

    def _forget(self) -> None:
        before = self._now() - KEPT_SECONDS
        self._jobs = {
            id_: job
            for id_, job in self._jobs.items()
            if job.state == "running" or job.ended_at > before
        }


def _progress(id_: str, job: _Job) -> Progress:
    return Progress(
        id=id_,
        spec=job.spec,
        priority=job.priority,
        state=job.state,
        listed=job.listed,
        objects_found=job.objects_found,
        objects_done=job.objects_done,
        objects_failed=job.objects_failed,
        bytes_found=job.bytes_found,
        bytes_done=job.bytes_done,
        bytes_failed=job.bytes_failed,
        bytes_by_rack=dict(job.by_rack),
    )
