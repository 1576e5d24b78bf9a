"""A load of one's own: what it is told, what it tells, and that a real node answers it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.drive import parse_mix, parse_size
from benchmarks.node import Feedrack
from benchmarks.server import ACCESS_KEY, HOST, SECRET_KEY


def test_a_mix_is_shares_by_method() -> None:
    assert parse_mix("get=45,stat=30, put=25") == {"GET": 45, "HEAD": 30, "PUT": 25}


@pytest.mark.parametrize("text", ["", "get", "get=", "get=x", "get=-1", "delete=3", "get=0,put=0"])
def test_what_is_no_mix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"mix|number"):
        parse_mix(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("17", 17), ("4KiB", 4096), ("64 MiB", 64 * 1024**2)]
)
def test_a_size_has_a_unit_or_is_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@given(text=st.text(max_size=12))
def test_anything_is_a_size_or_refused(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except ValueError as error:
        assert "is not a size" in str(error)  # noqa: PT017 - one of two right outcomes


def test_drives_a_node_with_a_mix(tmp_path: Path) -> None:
    with Feedrack(tmp_path / "data", tmp_path / "node") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.drive", f"{HOST}:{server.port}"),
                *("--size", "10KiB", "--objects", "20", "--concurrent", "4", "--most", "200"),
            ],
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:6]] == ["| GET", "| HEAD", "| PUT", "| all"]
    assert lines[5].startswith("| all | 200 |")
    assert ", 0 failures" in lines[7]
