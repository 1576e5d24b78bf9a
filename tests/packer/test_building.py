"""Shards as they are built: each object where its record says, at little more than its size."""

import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from packer.building import Sealed, build
from packer.plan import Task
from packer.reading import Outcome
from packer.runs import RunDamaged, read_head, read_run
from packer.stores.protocol import ConditionFailed, Got, StoreError

KIB = 1024
MIB = 1024**2
quiet = [HealthCheck.function_scoped_fixture]


def outcomes(sizes: Iterable[int], seed: int = 0) -> Iterator[Outcome]:
    chance = random.Random(seed)
    for number, size in enumerate(sizes):
        data = chance.randbytes(size) if size < 5000 else bytes(size)
        yield Task(f"{number:06}", size, "e", 1), Got(data, "e")


def built(found: Iterable[Outcome], folder: Path, shard_bytes: int = 16 * MIB) -> list[Sealed]:
    return list(
        build(
            found,
            folder,
            shard_bytes=shard_bytes,
            largest_bytes=MIB,
            generation=1,
            first_number=1,
            took=lambda _: None,
            left_out=lambda _task, _error: None,
        )
    )


@st.composite
def mixes(draw: st.DrawFn) -> list[int]:
    """8 to 24 MiB of objects of 1 KiB to 1 MiB, in any mix and any order."""
    kinds = draw(
        st.lists(
            st.integers(KIB, MIB) | st.sampled_from([KIB, 2 * KIB, 4 * KIB, MIB // 2 + 1, MIB]),
            min_size=1,
            max_size=4,
        )
    )
    chance = random.Random(draw(st.integers(0, 2**32)))
    total = draw(st.integers(8, 24)) * MIB
    sizes: list[int] = []
    while total > 0:
        sizes.append(chance.choice(kinds))
        total -= sizes[-1]
    return sizes


@given(sizes=mixes())
@example(sizes=[KIB] * 9000)
@example(sizes=[MIB] * 9)
@example(sizes=[MIB, KIB] * 9)
@example(sizes=[MIB // 2 + 1] * 20)
@settings(max_examples=25, deadline=None, suppress_health_check=quiet)
def test_a_shard_is_at_most_three_percent_larger_than_its_objects(
    tmp_path: Path, sizes: list[int]
) -> None:
    folder = tmp_path / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shards = built(outcomes(sizes), folder)
    for sealed in shards:
        shard = sealed.head.shard
        assert shard.size_bytes == sealed.shard.stat().st_size
        # A shard holds at least 8 MiB, but the last one of a pack.
        if shard.object_bytes >= 8 * MIB:
            assert shard.size_bytes <= 1.03 * shard.object_bytes
    assert sum(sealed.head.shard.object_bytes for sealed in shards) == sum(sizes)


@given(sizes=st.lists(st.integers(0, 4000) | st.just(70_000), max_size=60))
@settings(max_examples=40, deadline=None, suppress_health_check=quiet)
def test_every_object_lies_where_its_record_says(tmp_path: Path, sizes: list[int]) -> None:
    folder = tmp_path / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found: dict[bytes, bytes] = {}
    for sealed in built(outcomes(sizes), folder, 100_000):
        raw = sealed.shard.read_bytes()
        for key, record in read_run(sealed.run):
            found[key] = raw[record.offset : record.offset + record.size_bytes]
    expected = {task.key.encode(): got for task, got in outcomes(sizes)}
    assert found == {key: got.data for key, got in expected.items() if isinstance(got, Got)}


def test_the_same_objects_make_the_same_files(tmp_path: Path) -> None:
    names = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        sealed = built(outcomes([3000] * 20_000, seed=1), folder)
        names.append([shard.head.shard.sha256 for shard in sealed])
    assert names[0] == names[1]
    assert len(names[0]) == 4


def test_what_is_left_out_is_told_and_not_in_a_shard(tmp_path: Path) -> None:
    gone: list[str] = []
    took: list[str] = []
    mixed: list[Outcome] = [
        (Task("a", 1, "e", 1), Got(b"a", "e")),
        (Task("b", 1, "e", 1), ConditionFailed("changed")),
    ]

    def left(task: Task, error: StoreError) -> None:
        gone.append(f"{task.key} {error}")

    (sealed,) = build(
        mixed,
        tmp_path,
        shard_bytes=1000,
        largest_bytes=100,
        generation=1,
        first_number=7,
        took=lambda task: took.append(task.key),
        left_out=left,
    )
    assert (gone, took) == (["b changed"], ["a"])
    assert [key for key, _ in read_run(sealed.run)] == [b"a"]
    assert (sealed.head.number, sealed.run.name) == (7, "000007.run")


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30, deadline=None, suppress_health_check=quiet)
def test_a_run_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (sealed,) = built(outcomes([10] * 20), folder)
    raw = sealed.run.read_bytes()
    sealed.run.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(RunDamaged):
        assert len(list(read_run(sealed.run))) != read_head(sealed.run).entries
