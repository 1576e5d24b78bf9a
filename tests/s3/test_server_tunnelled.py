"""Everything that the S3 port promises, byte by byte, once more through a tunnel to a keeper."""

import pytest

from tests.s3 import running, test_endpoint, test_lane_changes, test_server
from tests.s3.tunnelled import TunnelledNode

for _module in (test_endpoint, test_lane_changes, test_server):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_"):
            globals()[f"{_name}_of_{_module.__name__.rpartition('.')[2]}"] = _test


@pytest.fixture(autouse=True)
def _through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Node", TunnelledNode)
