"""Ways to read are held against each other within their rounds."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import objects
from benchmarks.batches import WAYS, Row, Size, aims, table
from benchmarks.reader import Turn
from benchmarks.reading import Asked, Told, Way

SIZE = Size(label="4 KiB", size_bytes=4096, count=1000)


def turn(per_second: float, cpu_us: float = 10.0) -> Turn:
    return Turn(
        told=Told(
            objects=1000,
            seconds=1000 / per_second,
            cpu_seconds=cpu_us * 1000 / 2e6,
            opening_seconds=0.0,
            wrong=0,
        ),
        server_cpu_seconds=cpu_us * 1000 / 2e6,
    )


def rows(**rounds: list[Turn]) -> list[Row]:
    return [Row(size=SIZE, way=way, rounds=rounds[way.replace(" ", "_")]) for way in WAYS]


def test_each_aim_is_the_median_of_the_rounds_own_ratio() -> None:
    found = aims(
        rows(
            boto3=[turn(100, 1000), turn(10), turn(100)],
            batch=[turn(1000, 50), turn(110), turn(1300)],
            short_circuit=[turn(9000, 1), turn(990), turn(13000)],
            views=[turn(1)] * 3,
            files=[turn(1)] * 3,
        )
    )
    assert [(aim.way, aim.over) for aim in found] == [
        ("batch", "boto3"),
        ("short circuit", "batch"),
    ]
    assert [aim.reached for aim in found] == pytest.approx([11.0, 9.0])
    assert [aim.met for aim in found] == [True, False]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_a_row(way: Way) -> None:
    found = rows(
        boto3=[turn(1)],
        batch=[turn(20)],
        short_circuit=[turn(300)],
        views=[turn(400)],
        files=[turn(50)],
    )
    lines = table(found, aims(found))
    [row] = [line for line in lines if f"| {way} |" in line]
    assert row.count("|") == lines[0].count("|")
    # What asks no node is not charged with what the node does besides.
    assert (row.split("|")[-2].strip() == "") == (way == "files")


def read_files(folder: Path) -> Told:
    asked = Asked(
        way="files",
        endpoint_url="",
        bucket="",
        prefix="p",
        count=300,
        size_bytes=5000,
        folder=str(folder),
        seconds=0.0,
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.reading"],
        input=msgspec.json.encode(asked) + b"\ngo\n",
        stdout=subprocess.PIPE,
        check=True,
    )
    ready, told = done.stdout.splitlines()
    assert ready == b"ready"
    return msgspec.json.decode(told, type=Told)


def test_a_reader_reads_until_its_time_is_up_and_looks_at_what_it_got(tmp_path: Path) -> None:
    objects.write_files(tmp_path, "p", 300, 5000)
    told = read_files(tmp_path)
    assert (told.objects, told.wrong) == (256, 0)
    for number in range(300):
        (tmp_path / objects.key("p", number)).write_bytes(bytes(5000))
    # One in 64 is looked at.
    assert read_files(tmp_path).wrong == 4
