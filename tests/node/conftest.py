"""Nodes for the tests of this folder: made on demand, always stopped."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.process import GatewayProcess, s3_origin_settings
from tests.origins import MotoServer, moto_server

MakeNode = Callable[..., GatewayProcess]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """`make_node(settings)` starts a node that the end of the test stops."""
    nodes: list[GatewayProcess] = []

    def make(settings: dict[str, Any] | None = None, **kwargs: Any) -> GatewayProcess:
        node = GatewayProcess(tmp_path / f"node{len(nodes)}", settings, **kwargs)
        nodes.append(node)
        return node.start()

    yield make
    for node in nodes:
        if node.process is not None and node.process.poll() is None:
            node.kill()


@pytest.fixture
def node(make_node: MakeNode) -> GatewayProcess:
    """A node over an empty directory."""
    return make_node()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """One S3 service for a module: its tests share no bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def node_of_each_origin(
    request: pytest.FixtureRequest, make_node: MakeNode, tmp_path: Path
) -> GatewayProcess:
    """A node over an empty directory, and one before an S3 service."""
    if request.param == "directory":
        return make_node()
    url = request.getfixturevalue("moto").url
    return make_node({"origins": {"cloud": s3_origin_settings(url, tmp_path)}})


@pytest.fixture
def require() -> Callable[[str, str | None], str]:
    """`require("rclone", path)` is the path, or a skip; a failure if REQUIRE names the tool."""

    def check(name: str, path: str | None) -> str:
        if path is not None:
            return path
        if name in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names {name}, and it is not installed")
        pytest.skip(f"{name} is not installed")

    return check


@pytest.fixture
def aws(require: Callable[[str, str | None], str]) -> str:
    """The AWS CLI, from its own environment or the system's."""
    tools = Path(__file__).parents[2] / ".tools" / "bin" / "aws"
    return require("aws", str(tools) if tools.exists() else shutil.which("aws"))


@pytest.fixture
def rclone(require: Callable[[str, str | None], str]) -> str:
    return require("rclone", shutil.which("rclone"))


@pytest.fixture
def s3cmd(require: Callable[[str, str | None], str]) -> str:
    return require("s3cmd", shutil.which("s3cmd"))
