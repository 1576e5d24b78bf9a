"""Writes over a pack are in its log before they are answered, whatever fails or comes between."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from gateway.errors import (
    AccessDenied,
    ConditionalRequestConflict,
    FeedrackError,
    NoSuchKey,
    TierUnavailable,
)
from gateway.tiers.packed import log
from packer.format import decode_overrides
from tests.packs.bench import BUCKET, PLACE, Bench, Held

OBJECTS = {f"p/{number:02}": b"packed %d" % number for number in range(20)}


def records(bench: Bench) -> list[tuple[str, str]]:
    """What the log says, in order: what was done to which key."""
    return [
        (record.op, record.key)
        for file in bench.files("overrides")
        for record in decode_overrides(file.read_bytes()).records
    ]


async def test_two_nodes_that_append_the_same_number_both_keep_their_records(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    one, other = await bench.node(), await bench.node()
    assert await one.has("p/00")
    held = Held(one, "put", PLACE.overrides)
    slow = asyncio.create_task(one.put("p/00", b"of one"))
    await held.reached.wait()
    await other.put("p/01", b"of the other")
    held.going.set()
    await slow
    assert records(bench) == [("put", "p/01"), ("put", "p/00")]
    for node in (one, other):
        assert await node.get("p/00") == b"of one"
        assert await node.get("p/01") == b"of the other"


async def test_an_append_whose_answer_was_lost_is_not_made_twice(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    lost: list[str] = []

    async def lose(operation: str, key: str) -> None:
        # As a client of S3 that tries again by itself, and meets its own record.
        if operation == "put" and key.startswith(PLACE.overrides) and not lost:
            lost.append(key)
            raise ConditionalRequestConflict

    node.origin.after = lose
    await node.put("p/00", b"new")
    assert lost
    assert records(bench) == [("put", "p/00")]
    assert await node.get("p/00") == b"new"


async def test_a_number_that_somebody_else_is_writing_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_CONFLICT_SECONDS", 0.0)
    await bench.packed(OBJECTS)
    node = await bench.node()
    left = [ConditionalRequestConflict()] * 3

    async def refuse(operation: str, key: str) -> None:
        if operation == "put" and key.startswith(PLACE.overrides) and left:
            raise left.pop()

    node.origin.before = refuse
    await node.delete("p/00")
    assert records(bench) == [("delete", "p/00")]
    left.extend([ConditionalRequestConflict()] * 1000)
    with pytest.raises(TierUnavailable):
        await node.delete("p/01")


async def test_a_write_that_cannot_be_logged_is_not_acknowledged_and_the_next_is(
    bench: Bench,
) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    failures: list[FeedrackError] = [TierUnavailable("away"), AccessDenied(), NoSuchKey()]

    async def fail(operation: str, key: str) -> None:
        if operation == "put" and key.startswith(PLACE.overrides) and failures:
            raise failures.pop(0)

    node.origin.before = fail
    with pytest.raises(TierUnavailable):
        await node.put("p/00", b"new")
    assert await node.get("p/00") == OBJECTS["p/00"]
    with pytest.raises(AccessDenied):
        await node.put("p/00", b"newer")
    # That the *log* lacks something is no answer to a PutObject.
    with pytest.raises(TierUnavailable):
        await node.put("p/00", b"newest")
    await node.put("p/00", b"last")
    assert await node.get("p/00") == b"last"
    assert records(bench) == [("put", "p/00")]


async def test_writes_that_come_together_share_records_of_at_most_a_thousand(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    held = Held(node, "put", PLACE.overrides)
    first = asyncio.create_task(node.delete("p/first"))
    await held.reached.wait()
    others = [
        asyncio.create_task(
            node.service.delete_many(BUCKET, [(f"p/{name}/{key}", None) for key in range(1000)])
        )
        for name in range(4)
    ]
    waiting = node.packed._logs[node.pack]._waiting
    while len(waiting) < 4:
        await asyncio.sleep(0)
    held.going.set()
    await asyncio.gather(first, *others)
    assert len(bench.files("overrides")) == 5
    assert len(records(bench)) == 4_001
    # And a node that reads them all.
    beside = await bench.node()
    assert set(await beside.keys()) == set(OBJECTS)


async def test_of_overlapping_writes_of_a_key_listings_ask_the_origin(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    assert await node.has("p/00")
    held = Held(node, "put", "p/00")
    slow = asyncio.create_task(node.put("p/00", b"written last"))
    await held.reached.wait()
    await node.put("p/00", b"first")
    held.going.set()
    await slow
    assert {op for op, _ in records(bench)} == {"unsure"}
    for each in (node, await bench.node()):
        assert (await each.keys())["p/00"] == len(b"written last")
        assert await each.get("p/00") == b"written last"


async def test_a_client_that_leaves_while_its_write_is_logged_takes_nothing_back(
    bench: Bench,
) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    assert await node.has("p/00")
    held = Held(node, "put", PLACE.overrides)
    leaving = asyncio.create_task(node.put("p/00", b"new"))
    await held.reached.wait()
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    later = asyncio.create_task(node.put("p/00", b"newer"))
    held.going.set()
    await later
    assert records(bench) == [("put", "p/00"), ("put", "p/00")]
    assert await node.get("p/00") == b"newer"
    assert (await node.keys())["p/00"] == len(b"newer")


async def test_what_clients_left_behind_is_logged_before_a_node_stops(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    assert await node.has("p/00")
    held = Held(node, "put", PLACE.overrides)
    leaving = asyncio.create_task(node.put("p/00", b"new"))
    await held.reached.wait()
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    ending = asyncio.create_task(bench.end(node))
    held.going.set()
    await ending
    assert records(bench) == [("put", "p/00")]


async def test_a_number_that_was_folded_meanwhile_is_appended_again(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node, other = await bench.node(freshness_seconds=3600), await bench.node()
    assert await node.has("p/00")
    await other.put("p/01", b"folded")
    held = Held(node, "put", PLACE.overrides)
    slow = asyncio.create_task(node.put("p/00", b"new"))
    await held.reached.wait()
    await bench.make(keep_seconds=0.0)
    # Its record meets nothing under the number that was cleaned away.
    assert not bench.files("overrides")
    node.pack.manifests.refresh()
    await node.pack.manifests.since(node.packed._now())
    held.going.set()
    await slow
    assert [file.name for file in bench.files("overrides")][-1] == "0000000000000002.json"
    for each in (node, await bench.node()):
        assert await each.get("p/00") == b"new"
        assert await each.get("p/01") == b"folded"


async def test_a_put_whose_head_finds_another_write_is_answered_all_the_same(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node, other = await bench.node(), await bench.node()
    # The origin tells of a new object only when it is asked, as S3 does.
    original = node.origin._origin.put

    async def put(*arguments: object) -> object:
        return msgspec.structs.replace(await original(*arguments), info=None)

    node.origin._origin.put = put
    held = Held(node, "head", "p/00")
    slow = asyncio.create_task(node.put("p/00", b"new"))
    await held.reached.wait()
    await other.delete("p/00")
    held.going.set()
    await slow
    for each in (node, other):
        assert not await each.has("p/00")
        assert "p/00" not in await each.keys()


async def test_a_gap_in_the_log_is_no_reason_to_guess(bench: Bench) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node()
    assert await node.has("p/00")
    other = await bench.node()
    for number in range(3):
        await other.put(f"p/{number:02}", b"new")
    bench.files("overrides")[1].unlink()
    with pytest.raises(TierUnavailable):
        await node.get("p/05")
    with pytest.raises(TierUnavailable):
        await (await bench.node()).get("p/05")
