"""The shape of the code is held, not hoped for: floors, names, sizes, docstrings, metrics."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.s3.frames import Kind
from gateway.telemetry.metrics import Metrics

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("gateway", "packer", "feedrack", "scheduler_plugin", "demo", "benchmarks")
_MODULES = sorted(
    path.relative_to(_ROOT) for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")
)
_LONGEST_LINES = 450
_PAGES = sorted(
    path.relative_to(_ROOT)
    for path in (*(_ROOT / "docs").glob("*.md"), _ROOT / "README.md", _ROOT / "CONTRIBUTING.md")
)


def test_every_floor_imports_only_floors_below_it() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_a_module_says_what_it_is_and_can_be_read_alone(module: Path) -> None:
    text = (_ROOT / module).read_text("utf-8")
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    assert len(text.splitlines()) <= _LONGEST_LINES
    assert module.stem not in {"utils", "helpers", "common", "manager", "util", "misc"}


def test_botocore_is_imported_in_the_s3_origin_alone() -> None:
    importers = {
        str(module)
        for module in _MODULES
        if module.parts[0] == "gateway"
        for node in ast.walk(ast.parse((_ROOT / module).read_text("utf-8")))
        for name in _imported(node)
        if name.split(".")[0] in ("aiobotocore", "botocore", "boto3")
    }
    assert importers
    assert all(name.startswith("gateway/tiers/origin_s3/") for name in importers)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


@pytest.mark.parametrize("page", _PAGES, ids=str)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    named = set(
        re.findall(r"(?<![\w/.-])(?:[\w.-]+/)+\w+\.py\b", (_ROOT / page).read_text("utf-8"))
    )
    missing = [
        name
        for name in named
        if not (_ROOT / name).exists() and not (_ROOT / "gateway" / name).exists()
    ]
    assert not missing


def test_the_frames_between_processes_are_all_explained() -> None:
    page = (_ROOT / "docs/workers.md").read_text("utf-8")
    named = {
        name
        for row in re.findall(r"^\| (`[A-Z`, ]+`) \|", page, re.MULTILINE)
        for name in re.findall(r"[A-Z]+", row)
    }
    assert named == {kind.name for kind in Kind}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("feedrack_requests", ("operation", "code", "tenant")),
        ("feedrack_request_seconds", ("operation", "tier")),
        ("feedrack_read_bytes", ("tier",)),
        ("feedrack_cross_rack_bytes", ()),
        ("feedrack_origin_requests", ("operation",)),
        ("feedrack_origin_read_bytes", ()),
        ("feedrack_cache_bytes", ()),
        ("feedrack_cache_capacity_bytes", ()),
        ("feedrack_fills_in_flight", ()),
        ("feedrack_evicted_bytes", ()),
        ("feedrack_members", ()),
    ],
)
def test_the_metrics_of_the_contract_exist_with_their_labels(
    name: str, labels: tuple[str, ...]
) -> None:
    found = {
        collector._name: collector._labelnames
        for collector in vars(Metrics()).values()
        if hasattr(collector, "_labelnames")
    }
    assert found[name] == labels
