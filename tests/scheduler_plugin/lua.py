"""job_submit.lua in an interpreter of its own, as the controller has it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scheduler_plugin" / "site" / "job_submit.lua"
_HARNESS = Path(__file__).with_name("harness.lua")


@dataclass(frozen=True)
class Submitted:
    """What became of a job. `opened`: how many files were, and the first of them."""

    code: int
    errors: int
    opened: int
    path: str
    prefer: str | None
    begin_time: str | None
    admin_comment: str | None
    features: str | None

    @property
    def said(self) -> dict[str, str]:
        """The words of the comment."""
        words = (self.admin_comment or "").split(" ")
        return dict(word.split("=", 1) for word in words if "=" in word)


class Controller:
    """The script over a folder of rankings."""

    def __init__(self, rankings: Path, folder: Path, *, most_wait_minutes: int = 1440) -> None:
        program = shutil.which("lua5.1")
        if program is None:
            if "slurm" in os.environ.get("REQUIRE", "").split(","):
                pytest.fail("REQUIRE names slurm: lua5.1 is not installed")
            pytest.skip("lua5.1 is not installed")
        script = SCRIPT.read_text().replace("@RANKINGS@", str(rankings))
        path = folder / "job_submit.lua"
        path.write_text(script.replace("@MOST_WAIT_MINUTES@", str(most_wait_minutes)))
        self._process = subprocess.Popen(
            [program, str(_HARNESS), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def submit(self, **job: Any) -> Submitted:
        """A job by its fields; of what is not said Slurm's word for that."""
        fields = {"user_id": 1000, "group_id": 1000, "min_nodes": 4294967294} | job
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_literal(fields).hex().encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the interpreter has ended"
        words = bytes.fromhex(line.decode()).split(b"\0")
        code, errors, opened, path, *fields_after = (
            word.decode("utf-8", "surrogateescape") for word in words
        )
        after = [None if word == "-" else word[1:] for word in fields_after]
        return Submitted(int(code), int(errors), int(opened), path, *after)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _literal(value: Any) -> bytes:
    """A value as Lua reads it."""
    match value:
        case bool():
            return b"true" if value else b"false"
        case int():
            return str(value).encode()
        case str() | bytes():
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            return b'"' + b"".join(b"\\%03d" % byte for byte in raw) + b'"'
        case Mapping():
            parts = (b"[%b]=%b" % (_literal(key), _literal(each)) for key, each in value.items())
            return b"{" + b",".join(parts) + b"}"
        case list():
            return b"{" + b",".join(map(_literal, value)) + b"}"
    raise TypeError(type(value))
