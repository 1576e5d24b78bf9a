"""Becoming a member: joining in one step, and learning what was missed meanwhile."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog
from msgspec.structs import replace

from gateway.cluster.changes import ChangeId, Position, Run, decode_refs, position, written
from gateway.cluster.members import Member, decode_member, encode_member
from gateway.cluster.scripts import JOIN
from gateway.cluster.session import DOUBT_SECONDS, MARGIN, Claimed, Mark, Session, keys
from gateway.config import ClusterConfig
from gateway.index.cluster import Link
from gateway.model.objects import ObjectRef

log = structlog.get_logger()


class Joined(NamedTuple):
    """A new session, and how things were at its entry: `place` in the stream, the members, what
    they were changing, and what others have left open that the origin may still do."""

    session: Session
    place: Position
    members: list[Member]
    changing: dict[ChangeId, tuple[ObjectRef, ...]]
    doubted: dict[Run, tuple[ObjectRef, ...]]


async def join(
    link: Link,
    config: ClusterConfig,
    member: Member,
    folder_token: str,
    now: Callable[[], float],
) -> Joined:
    """Becomes a member. Claimed, CoordinatorUnavailable."""
    incarnation = f"{folder_token}.{secrets.token_hex(8)}"
    member = replace(member, incarnation=incarnation, joined=0)
    run = Run(member.id, incarnation)
    before = count = ""
    while True:
        sent = now()
        answer = await link.script(
            JOIN,
            keys(link, run),
            [
                *run,
                encode_member(member),
                secrets.token_hex(16),
                before,
                count,
                link.key(""),
                config.changes_kept,
                DOUBT_SECONDS,
            ],
            replicas=config.redis_replicas,
        )
        if answer[0] == b"joined":
            return _joined(answer, run, sent, now(), config.lease_seconds)
        there, renewed = answer[2].decode(), answer[3].decode()
        if folder_token and there.startswith(f"{folder_token}."):
            # We have that run's folder to ourselves: it is over.
            before, count = there, ""
            continue
        if before:
            other = decode_member(answer[4])
            raise Claimed(f"another node is up under the id {member.id!r} (it serves {other.s3})")
        before, count = there, renewed
        await asyncio.sleep(config.lease_seconds * (1 + MARGIN))


def _joined(
    answer: Sequence[Any], run: Run, sent: float, received: float, lease_seconds: float
) -> Joined:
    _, process, token, place, members, changing, established, doubted = answer
    session = Session(
        run=run,
        token=token.decode(),
        process=process.decode(),
        until=sent + lease_seconds,
        # Whatever another process of Redis has granted, it had granted by now.
        quiet_until=0.0 if established else received + lease_seconds * (1 + MARGIN),
        established=bool(established),
    )
    found = {
        ChangeId(Run(id_.decode(), incarnation.decode()), int(number)): decode_refs(raw)
        for id_, incarnation, held in changing
        for number, raw in zip(held[::2], held[1::2], strict=True)
    }
    left = {
        Run(*name.decode().rsplit(":", 1)): tuple(ref for raw in held for ref in decode_refs(raw))
        for name, held in doubted
    }
    joined = [decode_member(each) for each in members]
    return Joined(session, position(place), joined, found, left)


async def missed(
    link: Link, mark: Mark | None, session: Session, place: Position
) -> list[ObjectRef] | None:
    """The keys changed from `mark` to `place`; None where that is not known.
    CoordinatorUnavailable."""
    if mark is None or (mark.token, mark.process) != (session.token, session.process):
        return None
    changes = link.key("changes")
    refs: list[ObjectRef] = []
    after = mark.position
    while after < place:
        rows = await link.entries(changes, f"({written(after)}", written(place), limit=1000)
        for raw, fields in rows:
            after = position(raw)
            if fields.get(b"k") == b"begin":
                refs.extend(decode_refs(fields[b"d"]))
        if not rows:
            break
    # Afterwards, since it may have been trimmed meanwhile.
    first = await link.entries(changes, "-", "+", limit=1)
    if not first or position(first[0][0]) > mark.position:
        log.warning("too long away", reason="the changes meanwhile are not kept any more")
        return None
    return refs
