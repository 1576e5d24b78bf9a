"""What an origin was asked is taken from the origin's own figures."""

from collections.abc import Mapping

import pytest

from benchmarks.counted import requests_of
from benchmarks.epoch import ORDERS, Epoch, table, verdict
from benchmarks.packed import Packed
from benchmarks.reader import Turn
from benchmarks.reading import Told

PACKED = Packed(
    packed_objects=1000,
    packed_bytes=4_096_000,
    shard_files=3,
    shard_file_bytes=4_200_000,
    index_bytes=98_304,
    seconds=1.0,
)
METRICS = """\
# HELP SeaweedFS_s3_request_total Counter of s3 requests.
# TYPE SeaweedFS_s3_request_total counter
SeaweedFS_s3_request_total{bucket="read",code="200",type="GET"} 6004
SeaweedFS_s3_request_total{bucket="read",code="404",type="GET"} 4
SeaweedFS_s3_request_total{bucket="read",code="200",type="LIST"} 13
# TYPE SeaweedFS_other_total counter
SeaweedFS_other_total{type="GET"} 77
"""


def epochs(gets: Mapping[bool, int]) -> list[Epoch]:
    told = Told(objects=1000, seconds=2.0, cpu_seconds=0.1, opening_seconds=0.2, wrong=0)
    return [
        Epoch(
            packed=packed,
            order=order,
            turn=Turn(told=told, server_cpu_seconds=0.3),
            requests={"GET": gets[packed], "LIST": 2} if packed else {"GET": gets[packed]},
        )
        for packed in (False, True)
        for order in ORDERS
    ]


def test_requests_of_all_outcomes_count() -> None:
    assert requests_of(METRICS) == {"GET": 6008, "LIST": 13}
    assert requests_of("") == {}


@pytest.mark.parametrize(("gets", "said"), [(5, "reached"), (6, "missed")])
def test_a_get_a_shard_the_index_and_the_manifest_are_aimed_at(gets: int, said: str) -> None:
    text = verdict(epochs({False: 1000, True: gets}), PACKED)
    assert text.endswith(f"at most 5. Counted at the origin: {gets}, {said}.")


def test_every_epoch_has_a_row_with_every_operation() -> None:
    head, rule, *rows = table(epochs({False: 1000, True: 5}))
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}
    assert [row.split("|")[1:4] for row in rows] == [
        [" not packed, sequential ", " 1,000 ", " 0 "],
        [" not packed, shuffled ", " 1,000 ", " 0 "],
        [" packed, sequential ", " 5 ", " 2 "],
        [" packed, shuffled ", " 5 ", " 2 "],
    ]
