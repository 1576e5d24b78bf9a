"""Shared heads: a reader in another process believes what the keeper does, or nothing."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.store import shared_heads
from gateway.store.shared_heads import SharedHeads, SharedHeadsView, index_mark, make_memory
from gateway.store.versions import VersionTable

REF = ObjectRef("main", "train", "a")
OTHER = ObjectRef("main", "train", "b")


def info(etag: str, **fields: object) -> ObjectInfo:
    told = {"size_bytes": 5, "last_modified_ms": 1_700_000_000_000, **fields}
    return ObjectInfo(etag=etag, **told)  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_memory()
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heads(memory: int) -> Iterator[SharedHeads]:
    heads = SharedHeads(memory)
    heads.begin()
    yield heads
    heads.close()


@pytest.fixture
def view(memory: int, heads: SharedHeads, clock: Clock) -> Iterator[SharedHeadsView]:
    # So few that every other look finds a place it has seen before, and one it has not.
    view = SharedHeadsView(memory, now=clock, limit=2)
    yield view
    view.close()


def test_what_is_remembered_is_read_whole(heads: SharedHeads, view: SharedHeadsView) -> None:
    told = info(
        "e1",
        version_id="v1",
        headers={"content-type": "text/plain", "x-amz-meta-name": "ü"},
        checksums={"SHA256": "x="},
        checksum_type="COMPOSITE",
        checksums_known=False,
    )
    heads.remembered(REF, told, 100.0)
    assert view.trusted(REF, None) == told
    assert view.trusted(OTHER, None) is None


def test_what_is_dropped_is_not_found_by_whoever_looks_next(
    heads: SharedHeads, view: SharedHeadsView
) -> None:
    heads.remembered(REF, info("e1"), 100.0)
    heads.dropped(REF)
    assert view.trusted(REF, None) is None
    heads.dropped(REF)


def test_a_reader_applies_the_freshness_of_its_bucket(
    heads: SharedHeads, view: SharedHeadsView, clock: Clock
) -> None:
    heads.remembered(REF, info("e1"), 100.0)
    clock.seconds = 159.9
    assert view.trusted(REF, 60.0) is not None
    clock.seconds = 160.0
    assert view.trusted(REF, 60.0) is None
    assert view.trusted(REF, None) is not None
    assert view.trusted(REF, 0.0) is None


def test_versions_asked_for_by_id_are_not_shared_and_do_not_hide_the_current_one(
    heads: SharedHeads, view: SharedHeadsView
) -> None:
    old = ObjectRef("main", "train", "a", "v0")
    heads.remembered(REF, info("e1"), 100.0)
    heads.remembered(old, info("e0", version_id="v0"), 100.0)
    assert view.trusted(old, None) is None
    assert view.trusted(REF, None) == info("e1")
    heads.dropped(old)
    assert view.trusted(REF, None) is None


@pytest.mark.parametrize(
    "unfit",
    [info("e2", headers={"x-amz-meta-long": "x" * 600}), info("e2", headers={"x": "\ud800"})],
    ids=["too large", "not text"],
)
def test_what_does_not_fit_is_not_shared_and_voids_what_was(
    heads: SharedHeads, view: SharedHeadsView, unfit: ObjectInfo
) -> None:
    heads.remembered(REF, info("e1"), 100.0)
    heads.remembered(REF, unfit, 100.0)
    assert view.trusted(REF, None) is None


def test_a_keeper_that_starts_voids_what_an_earlier_one_left(
    memory: int, heads: SharedHeads, view: SharedHeadsView
) -> None:
    heads.remembered(REF, info("e1"), 100.0)
    heads.mark_index(7)
    following = SharedHeads(memory)
    assert view.trusted(REF, None) == info("e1")
    following.begin()
    assert view.trusted(REF, None) is None
    assert not view.believes_index(7)
    following.remembered(REF, info("e2"), 101.0)
    assert view.trusted(REF, None) == info("e2")
    following.close()


def test_what_an_earlier_keeper_leaves_half_written_is_not_believed(
    memory: int, heads: SharedHeads, view: SharedHeadsView
) -> None:
    heads.remembered(REF, info("e1"), 100.0)
    content = os.pread(memory, shared_heads._SIZE_BYTES, 0)
    at = content.index(b"\xa2e1")
    os.pwrite(memory, b"\xa2e9", at)
    assert view.trusted(REF, None) is None
    os.pwrite(memory, b"\xa2e1", at)
    assert view.trusted(REF, None) == info("e1")


def test_a_full_set_gives_up_its_oldest(
    heads: SharedHeads, view: SharedHeadsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_heads, "_SETS", 1)
    refs = [ObjectRef("main", "train", f"k{n}") for n in range(17)]
    for n, ref in enumerate(refs):
        heads.remembered(ref, info(f"e{n}"), 100.0 + (5 - n if n < 5 else n))
    found = [view.trusted(ref, None) for ref in refs]
    assert found[4] is None
    assert all(found[n] == info(f"e{n}") for n in range(17) if n != 4)


def test_the_index_is_believed_only_under_its_own_mark(
    heads: SharedHeads, view: SharedHeadsView
) -> None:
    mark = index_mark((3, 77), 1)
    assert not view.believes_index(mark)
    heads.mark_index(mark)
    assert view.believes_index(mark)
    assert not view.believes_index(index_mark((3, 78), 1))
    assert not view.believes_index(index_mark((4, 77), 1))
    assert not view.believes_index(index_mark((3, 77), 2))
    heads.mark_index(index_mark(None, 1))
    assert not view.believes_index(mark)
    assert not view.believes_index(index_mark(None, 1))


def test_a_version_table_tells_what_it_remembers_before_and_drops_at_once(
    heads: SharedHeads, view: SharedHeadsView, clock: Clock
) -> None:
    table = VersionTable(now=clock, observer=heads)
    reading = table.begin_read(REF)
    table.learn(reading, info("e1"))
    table.end_read(reading)
    assert view.trusted(REF, 60.0) == info("e1")
    writing = table.begin_write(REF)
    assert view.trusted(REF, 60.0) is None
    clock.seconds += 50
    table.end_write(writing, info("e2"))
    assert view.trusted(REF, 60.0) == info("e2")
    # Known since the write began, not since it ended.
    clock.seconds += 11
    assert view.trusted(REF, 60.0) is None
    table.forget(REF)
    assert view.trusted(REF, None) is None


_REFS = [ObjectRef("main", "train", f"k{n}") for n in range(40)]
_STEPS = st.lists(
    st.tuples(st.sampled_from(_REFS), st.one_of(st.none(), st.integers(0, 500))), max_size=120
)


@given(_STEPS)
@settings(deadline=None)
def test_a_reader_never_finds_another_version_than_the_last(
    steps: list[tuple[ObjectRef, int | None]],
) -> None:
    memory = make_memory()
    heads, view = SharedHeads(memory), SharedHeadsView(memory)
    heads.begin()
    truth: dict[ObjectRef, ObjectInfo] = {}
    try:
        for ref, length in steps:
            if length is None:
                heads.dropped(ref)
                truth.pop(ref, None)
            else:
                truth[ref] = info(f"e{len(truth)}", headers={"x": "y" * length})
                heads.remembered(ref, truth[ref], 1.0)
            for known in _REFS:
                found = view.trusted(known, None)
                if found is None:
                    assert known not in truth or len(truth[known].headers["x"]) > 400
                else:
                    assert found == truth[known]
    finally:
        heads.close()
        view.close()
        os.close(memory)


def _read_until(stop: Event, descriptor: int, wrong: "multiprocessing.Queue[str]") -> None:
    view = SharedHeadsView(descriptor)
    last = 0
    while not stop.is_set():
        found = view.trusted(REF, None)
        if found is None:
            continue
        number = int(found.etag)
        if found.headers["x"] != found.etag * 20:
            wrong.put(f"{found} is a mixture")
        if number < last:
            wrong.put(f"{number} was read after {last}")
        last = number
    wrong.put("" if last else "nothing was read")


def test_another_process_reads_no_mixture_and_nothing_older_than_before(memory: int) -> None:
    heads = SharedHeads(memory)
    heads.begin()
    spawn = multiprocessing.get_context("fork")
    stop, wrong = spawn.Event(), spawn.Queue()
    reader = spawn.Process(target=_read_until, args=(stop, memory, wrong))
    reader.start()
    end_at = time.monotonic() + 1.0
    number = 0
    while time.monotonic() < end_at:
        number += 1
        heads.remembered(REF, info(str(number), headers={"x": str(number) * 20}), 1.0)
        if number % 7 == 0:
            heads.dropped(REF)
    stop.set()
    assert wrong.get(timeout=60) == ""
    reader.join(timeout=60)
    heads.close()


def test_readers_believe_no_longer_than_they_are_let(memory: int) -> None:
    heads = SharedHeads(memory, unbounded=False)
    heads.begin()
    heads.mark_index(7)
    clock = Clock()
    view = SharedHeadsView(memory, now=clock)
    heads.remembered(REF, info("e1"), clock.seconds)
    assert view.trusted(REF, None) is None
    assert not view.believes_index(7)
    heads.trust(clock.seconds + 3)
    assert view.trusted(REF, None) == info("e1")
    assert view.believes_index(7)
    clock.seconds += 3
    assert view.trusted(REF, None) is None
    assert not view.believes_index(7)
    heads.trust(clock.seconds + 3)
    assert view.trusted(REF, None) == info("e1")
    heads.trust(0.0)
    assert view.trusted(REF, None) is None
    view.close()
    heads.close()


def test_once_everything_is_dropped_nothing_is_found(
    heads: SharedHeads, view: SharedHeadsView
) -> None:
    for ref in (REF, OTHER):
        heads.remembered(ref, info("e1"), 100.0)
        assert view.trusted(ref, None) == info("e1")
    heads.dropped_all()
    assert view.trusted(REF, None) is None
    assert view.trusted(OTHER, None) is None
    heads.remembered(REF, info("e2"), 101.0)
    assert view.trusted(REF, None) == info("e2")
