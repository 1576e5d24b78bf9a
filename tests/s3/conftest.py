"""A node for the tests of the S3 face."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.s3.running import Running, running


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    """A node over an empty directory, with a bucket "train"."""
    async with running(tmp_path) as started:
        (started.root / "train").mkdir()
        yield started


@pytest.fixture
def s3(node: Running) -> Iterator[Any]:
    """A boto3 client of the node's first tenant; to be used through `call`."""
    client = node.client()
    yield client
    client.close()
