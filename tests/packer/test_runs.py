"""Runs and streams in key order: nothing is lost at the edge of a block, or where keys meet."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from packer.format import Record, ShardFile
from packer.runs import RunDamaged, RunHead, Spool, join, read_head, read_run, write_run

quiet = [HealthCheck.function_scoped_fixture]
SHARD = ShardFile(sha256="0" * 64, size_bytes=1, objects=1, object_bytes=1)
# A few of them are more than a block of reading.
ENTRIES = [
    (f"{number:05}".encode(), Record(number, b"t" + bytes(number % 900), number))
    for number in range(1500)
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of several blocks."""
    path = tmp_path / "run"
    write_run(path, RunHead(7, SHARD, len(ENTRIES)), ENTRIES[::-1])
    assert path.stat().st_size > 2 * 256 * 1024
    return path


def test_a_run_is_read_as_it_was_written(run: Path) -> None:
    assert read_head(run) == RunHead(7, SHARD, len(ENTRIES))
    assert list(read_run(run)) == ENTRIES


@settings(suppress_health_check=quiet, max_examples=50)
@given(share=st.floats(0, 1, exclude_max=True))
@example(share=0.0)
def test_a_run_that_is_cut_short_is_never_taken_for_whole(run: Path, share: float) -> None:
    cut = run.with_name("cut")
    whole = run.read_bytes()
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(RunDamaged):
        list(read_run(cut))


@given(data=st.binary(max_size=200))
def test_what_is_no_run_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "no-run"
    path.write_bytes(data)
    with pytest.raises(RunDamaged):
        list(read_run(path))


@settings(suppress_health_check=quiet)
@given(values=st.lists(st.binary(max_size=300_000), max_size=6))
def test_a_spool_gives_back_what_it_was_given(tmp_path: Path, values: list[bytes]) -> None:
    spool: Spool[bytes] = Spool(tmp_path / "spool", bytes)
    for value in values:
        spool.add(value)
    assert list(spool) == values
    assert list(spool) == values


@given(
    streams=st.lists(
        st.lists(st.tuples(st.binary(max_size=2), st.integers()), max_size=8), max_size=4
    )
)
def test_streams_are_joined_by_key(streams: list[list[tuple[bytes, int]]]) -> None:
    ordered = [sorted(stream, key=lambda entry: entry[0]) for stream in streams]
    keys = sorted({key for stream in streams for key, _ in stream})
    assert list(join(*ordered)) == [
        (key, [[value for name, value in stream if name == key] for stream in ordered])
        for key in keys
    ]
