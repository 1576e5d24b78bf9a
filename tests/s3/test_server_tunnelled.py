"""Everything that the S3 port promises, byte by byte, once more through a tunnel to a keeper."""

import pytest

from tests.s3 import running, test_endpoint, test_server
from tests.s3.tunnelled import TunnelledNode

for _module in (test_endpoint, test_server):
    globals().update(
        {name: test for name, test in vars(_module).items() if name.startswith("test_")}
    )


@pytest.fixture(autouse=True)
def _through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Node", TunnelledNode)
