"""The queue of prefetches in Redis: any node adds to it, every node works on it.

    pf:jobs               sorted set: running jobs, by priority, the older first
    pf:ended              sorted set: jobs that have ended, by when (Redis's clock)
    pf:j:JOB              hash: what was asked for, how far it is, where its walk stands
    pf:n:JOB              set: nodes with items
    pf:q:JOB:NODE         list: items that wait;   pf:c:JOB:NODE   hash: items the node has claimed
    pf:o:JOB              hash: items left of each object
    pf:x:JOB              list: items of nodes that are gone, to be shared out anew
    pf:w:JOB              who walks the job, for a few seconds

An item is a node's for as long as that node is a member: whoever walks the job takes what nodes
that are gone have left. Each step of the walk, and each end of an item, is one script that takes
effect once, whatever is repeated.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from gateway.cluster.job_scripts import (
    BEGIN,
    CANCEL,
    CLAIM,
    CREATE,
    FINISH,
    PRIORITY,
    SHARED_OUT,
    WALK,
    WALKED,
)
from gateway.cluster.warming import (
    Item,
    Progress,
    Spec,
    State,
    decode_item,
    decode_spec,
    encode_item,
    encode_spec,
)
from gateway.errors import FeedrackError
from gateway.index.cluster import Link, Script, Word

MOST_JOBS = 256
KEPT_SECONDS = 3600
# Items of one job that may wait at one time: its walk goes on as they are worked off.
MOST_OPEN = 10_000
_WALK_SECONDS = 10


class TooManyJobs(FeedrackError):  # noqa: N818 - as the other internal errors
    """No more are taken before some have ended."""


class Claim(Struct, frozen=True):
    """An item that this node has taken."""

    job: str
    item: Item


class Walk(Struct, frozen=True):
    """A job that this node walks for now: where it stands, the next number to give out, and items
    to be shared out anew, the first of the list."""

    job: str
    spec: Spec
    position: bytes
    number: int
    listed: bool
    orphans: tuple[bytes, ...]


class Page(Struct, frozen=True):
    """A step of a walk: what was found, and what each node is to do."""

    position: bytes
    last: bool
    items: Sequence[tuple[str, Item]]
    objects: int
    size_bytes: int
    failed: int


class Jobs(Protocol):
    """A queue of prefetches. Everything may raise CoordinatorUnavailable."""

    async def create(self, spec: Spec, priority: int) -> str:
        """A new job's id. TooManyJobs."""
        ...

    async def all(self) -> list[Progress]:
        """Those that run, the most urgent first, then those that have ended within the hour."""
        ...

    async def get(self, id_: str) -> Progress | None: ...

    async def set_priority(self, id_: str, priority: int) -> bool:
        """Whether there is such a job that runs."""
        ...

    async def cancel(self, id_: str) -> bool:
        """Whether there is such a job that ran until now."""
        ...

    async def any(self) -> bool:
        """Whether any job runs."""
        ...

    async def runs(self, id_: str) -> bool: ...

    async def begin(self) -> None:
        """This node has started: what it had claimed before waits again."""
        ...

    async def claim(self, limit: int) -> list[Claim]:
        """The next items of this node, of the most urgent jobs."""
        ...

    async def finish(self, claim: Claim, *, done_bytes: int, failed_bytes: int) -> None:
        """An item is over."""
        ...

    async def walk(self, alive: Sequence[str]) -> Walk | None:
        """A job that nobody else walks and that has something to be walked. `alive`: the members
        that take items; what others have is to be shared out anew."""
        ...

    async def walked(self, walk: Walk, page: Page) -> None:
        """The next step, in place of `walk.position`; nothing where another node was there
        first."""
        ...

    async def shared_out(self, walk: Walk, items: Sequence[tuple[str, Item]], lost: int) -> None:
        """In place of `walk.orphans`. `lost` of them nobody can take: they have failed."""
        ...


class RedisJobs:
    """`Jobs` of a cluster, as the node `me` takes part in them."""

    def __init__(self, link: Link, me: str) -> None:
        self._link = link
        self._me = me
        self._prefix = link.key("pf", "")
        self._running = link.key("pf", "jobs")

    async def create(self, spec: Spec, priority: int) -> str:
        id_ = secrets.token_hex(8)
        if not await self._script(CREATE, id_, encode_spec(spec), priority, MOST_JOBS):
            raise TooManyJobs(f"{MOST_JOBS} jobs are running already")
        return id_

    async def all(self) -> list[Progress]:
        ended = self._link.key("pf", "ended")
        now = int((await self._link.command("TIME"))[0])
        await self._link.command("ZREMRANGEBYSCORE", ended, "-inf", now - KEPT_SECONDS)
        running, over = await self._link.commands(
            [("ZREVRANGE", self._running, 0, -1), ("ZREVRANGE", ended, 0, 999)]
        )
        ids = [each.decode() for each in (*running, *over)]
        rows = await self._link.commands([("HGETALL", self._key("j", id_)) for id_ in ids])
        found = (_progress(id_, _hash(row)) for id_, row in zip(ids, rows, strict=True))
        return [each for each in found if each is not None]

    async def get(self, id_: str) -> Progress | None:
        return _progress(id_, _hash(await self._link.command("HGETALL", self._key("j", id_))))

    async def set_priority(self, id_: str, priority: int) -> bool:
        return bool(await self._script(PRIORITY, id_, priority))

    async def cancel(self, id_: str) -> bool:
        return bool(await self._script(CANCEL, id_))

    async def any(self) -> bool:
        return bool(await self._link.command("EXISTS", self._running))

    async def runs(self, id_: str) -> bool:
        return bool(await self._link.command("HGET", self._key("j", id_), "state") == b"running")

    async def begin(self) -> None:
        await self._script(BEGIN, self._me)

    async def claim(self, limit: int) -> list[Claim]:
        found = await self._script(CLAIM, self._me, limit)
        return [
            Claim(id_.decode(), decode_item(raw))
            for id_, raw in zip(found[::2], found[1::2], strict=True)
        ]

    async def finish(self, claim: Claim, *, done_bytes: int, failed_bytes: int) -> None:
        item = claim.item
        await self._script(
            FINISH,
            claim.job,
            self._me,
            item.id,
            item.object_id,
            done_bytes,
            failed_bytes,
            item.rack,
            int(failed_bytes > 0),
        )

    async def walk(self, alive: Sequence[str]) -> Walk | None:
        found = await self._script(WALK, self._me, _WALK_SECONDS, MOST_OPEN, *alive)
        if not found:
            return None
        id_, spec, position, number, listed, orphans = found
        return Walk(
            id_.decode(),
            decode_spec(spec),
            position,
            int(number),
            listed == b"1",
            tuple(orphans),
        )

    async def walked(self, walk: Walk, page: Page) -> None:
        number = max([walk.number - 1, *(item.id for _, item in page.items)]) + 1
        await self._script(
            WALKED,
            walk.job,
            walk.position,
            page.position,
            int(page.last),
            walk.number,
            number,
            page.objects,
            page.size_bytes,
            page.failed,
            *_pushed(page.items),
        )

    async def shared_out(self, walk: Walk, items: Sequence[tuple[str, Item]], lost: int) -> None:
        number = max([walk.number - 1, *(item.id for _, item in items)]) + 1
        gone = sorted({decode_item(raw).object_id for raw in walk.orphans}) if lost else []
        await self._script(
            SHARED_OUT,
            walk.job,
            len(walk.orphans),
            walk.orphans[0],
            walk.number,
            number,
            len(gone),
            *gone,
            *_pushed(items),
        )

    async def _script(self, script: Script, *arguments: Word) -> Any:
        words: list[Word] = [self._prefix, KEPT_SECONDS, *arguments]
        return await self._link.script(script, [self._running], words)

    def _key(self, kind: str, id_: str) -> str:
        return f"{self._prefix}{kind}:{id_}"


def _pushed(items: Sequence[tuple[str, Item]]) -> list[Word]:
    words: list[Word] = []
    for node, item in items:
        words += [item.object_id, node, encode_item(item)]
    return words


def _hash(raw: object) -> dict[str, bytes]:
    pairs = raw if isinstance(raw, Mapping) else {}
    return {name.decode(): value for name, value in pairs.items()}


def _progress(id_: str, fields: Mapping[str, bytes]) -> Progress | None:
    """What a job's hash says; None where it is gone."""
    if "spec" not in fields:
        return None
    try:
        spec = decode_spec(fields["spec"])
    except msgspec.MsgspecError:
        return None

    def number(name: str) -> int:
        return int(fields.get(name, b"0"))

    racks = {name[5:]: int(value) for name, value in fields.items() if name.startswith("rack:")}
    return Progress(
        id=id_,
        spec=spec,
        priority=number("priority"),
        state=cast(State, fields.get("state", b"done").decode()),
        listed=fields.get("listed") == b"1",
        objects_found=number("objects_found"),
        objects_done=number("objects_done"),
        objects_failed=number("objects_failed"),
        bytes_found=number("bytes_found"),
        bytes_done=number("bytes_done"),
        bytes_failed=number("bytes_failed"),
        bytes_by_rack=racks,
    )
