"""One connection, three lanes: what is held here, and what goes through a tunnel, one way or the
other. As `test_lane_changes.py`, whose tests these are."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.s3 import running, test_lane_changes
from tests.s3.stocked import Stocked, stocked
from tests.s3.tunnelled import TunnelledNode

globals().update(
    {
        name: test
        for name, test in vars(test_lane_changes).items()
        if name.startswith("test_") or name in ("chance", "pytestmark")
    }
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stocked]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Node", TunnelledNode)
        async with stocked(tmp_path_factory.mktemp("node")) as started:
            yield started
