"""Two nodes that claim one id, as processes."""

from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFleet
from tests.node.process import GatewayProcess


def test_a_second_node_of_an_id_refuses_to_start_and_the_first_serves_on(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet = make_fleet(racks=("r1",), origin="directory")
    settings = {
        "node": fleet.node(0).settings["node"],
        "cluster": fleet.node(0).settings["cluster"] | {"listen": "127.0.0.1:0"},
    }
    second = GatewayProcess(tmp_path / "second", settings)
    with pytest.raises(RuntimeError, match="another node is up under the id 'n1'"):
        second.start()
    assert second.process is not None
    assert second.process.wait(timeout=60) == 1
    fleet.client(0).put_object(Bucket="train", Key="k", Body=b"still here")
    assert fleet.members(0) == ["n1"]
