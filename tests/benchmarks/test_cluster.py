"""What a cluster asked of its origin and of Redis is told as it was counted."""

import msgspec
import pytest

from benchmarks import told
from benchmarks.coldstart import BLOCK_BYTES, CHUNK_BYTES, MIB, Kind, Start
from benchmarks.coordinator import Load, totals_of
from benchmarks.counted import sent_bytes_of
from benchmarks.crowd import fields_of
from benchmarks.near import Settling
from benchmarks.racks import received_bytes
from gateway.cluster.chunk_sets import decode_bits

LARGE = Kind(name="large", count=2, size_bytes=20 * MIB, together=4)


def start(way: str = told.AWARE, *, gets: int = 6, origin_bytes: int = 40 * MIB) -> Start:
    return Start(
        way=way,
        kind=LARGE,
        pieces=6,
        gets=gets,
        heads=2,
        requests={"GET": gets + 2},
        origin_bytes=origin_bytes,
        cross_rack_bytes=80 * MIB,
        entered_bytes=None,
        seconds=1.5,
        read_bytes=0,
        failures=0,
        first_failure=None,
    )


def load(seconds: float, commands: dict[str, int], cpu_seconds: float = 0.0) -> Load:
    return Load(
        seconds=seconds,
        commands=commands,
        received_bytes=1000,
        sent_bytes=500,
        cpu_seconds=cpu_seconds,
    )


def test_a_last_chunk_that_is_not_full_is_a_piece_too() -> None:
    assert (LARGE.pieces(CHUNK_BYTES), LARGE.pieces(BLOCK_BYTES)) == (6, 10)


def test_bytes_are_told_as_times_those_of_the_objects() -> None:
    found = start()
    assert (found.gets_a_piece, found.times_read, found.times_crossed) == (1.0, 1.0, 2.0)
    assert found.times_entered is None


@pytest.mark.parametrize(
    ("found", "is_wrong"),
    [
        (start(), False),
        (start(gets=7), True),
        (start(origin_bytes=41 * MIB), True),
        (start(told.UNAWARE, gets=7), True),
        (start(told.STRANGERS, gets=36, origin_bytes=240 * MIB), False),
        (start(told.JUICEFS, gets=60, origin_bytes=240 * MIB), False),
    ],
)
def test_what_an_origin_gives_a_cluster_twice_is_wrong(found: Start, is_wrong: bool) -> None:
    assert bool(told.wrong([found], [])) is is_wrong


def test_reads_that_failed_are_wrong_whoever_was_asked() -> None:
    found = msgspec.structs.replace(start(told.JUICEFS), failures=3, first_failure="503")
    assert told.wrong([found], []) == [f"3 reads failed, {told.JUICEFS}, large: 503"]


def test_every_way_has_a_row_of_the_cold_starts_table() -> None:
    lines = told.cold([start(), start(told.JUICEFS)])
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4
    assert len({row.count("|") for row in rows}) == 1


def test_an_idle_time_is_taken_off_in_proportion_and_nothing_falls_below_none() -> None:
    idle = load(10.0, {"hget": 100, "xread": 50}, 0.2)
    beyond = load(5.0, {"hget": 60, "xread": 20, "xadd": 4}, 0.3).beyond(idle)
    assert beyond.commands == {"hget": 10, "xread": 0, "xadd": 4}
    assert beyond.executed == 14
    assert beyond.cpu_seconds == pytest.approx(0.2)
    assert beyond.moved_bytes == 750


def info(calls: int) -> dict[str, object]:
    return {
        "cmdstat_hget": {"calls": calls, "usec": 1},
        "cmdstat_info": {"calls": 7, "usec": 1},
        "total_net_input_bytes": 100 * calls,
        "total_net_output_bytes": 10 * calls,
        "used_cpu_user": 0.1 * calls,
        "used_cpu_sys": 0.0,
    }


def test_what_looking_at_redis_takes_is_not_counted() -> None:
    found = totals_of(info(5), 11.0).since(totals_of(info(2), 10.0))
    assert found.commands == {"hget": 3}
    assert (found.seconds, found.received_bytes, found.sent_bytes) == (1.0, 300, 30)


def test_bytes_sent_from_all_buckets_count() -> None:
    metrics = """\
# TYPE SeaweedFS_s3_bucket_traffic_sent_bytes_total counter
SeaweedFS_s3_bucket_traffic_sent_bytes_total{bucket="read"} 1000
SeaweedFS_s3_bucket_traffic_sent_bytes_total{bucket="juice"} 24
# TYPE SeaweedFS_s3_bucket_traffic_received_bytes_total counter
SeaweedFS_s3_bucket_traffic_received_bytes_total{bucket="read"} 7
"""
    assert sent_bytes_of(metrics) == 1024


def test_what_enters_a_rack_is_what_its_uplink_has_received() -> None:
    said = b'[{"ifname":"up","stats64":{"rx":{"bytes":123},"tx":{"bytes":9}}}]'
    assert received_bytes(said) == 123


def test_keys_of_redis_are_gathered_by_what_they_are_for() -> None:
    sizes = {"{bench}:members": 10, "{bench}:dir:v:aa": 3, "{bench}:dir:v:bb": 5}
    sizes |= {"{bench}:open:n1:x": 7, "{bench}:dir:token": 1}
    assert told.by_kind(sizes) == {
        "members": {"count": 1, "bytes": 10},
        "dir:v:…": {"count": 2, "bytes": 8},
        "open:…": {"count": 1, "bytes": 7},
        "dir:token": {"count": 1, "bytes": 1},
    }


@pytest.mark.parametrize(("chunks", "nodes", "racks"), [(1, 1, 1), (1, 3, 3), (64, 48, 3)])
def test_every_rack_of_an_entry_holds_every_chunk_once(chunks: int, nodes: int, racks: int) -> None:
    fields = fields_of(chunks, nodes)
    assert len(fields) == nodes
    held = [decode_bits(raw) for raw in fields.values() if isinstance(raw, bytes)]
    assert sum(bits.bit_count() for bits in held) == chunks * racks


def test_a_share_of_the_writes_is_told_by_the_bound_that_it_ends_within() -> None:
    settling = Settling(
        members=6, count=100, mean_ms=2.0, buckets={0.001: 40, 0.0025: 90, 0.005: 100}
    )
    assert (settling.within_ms(0.5), settling.within_ms(0.99)) == (2.5, 5.0)
