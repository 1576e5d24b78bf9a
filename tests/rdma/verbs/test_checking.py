"""What is told of this machine, which has all it needs and a device that is none."""

from gateway.config import RdmaConfig
from gateway.rdma.checking import check
from gateway.rdma.facts import gather, open_as_gateway
from gateway.rdma.findings import is_used


def test_soft_roce_is_used_and_known_for_what_it_is() -> None:
    config = RdmaConfig()
    findings = check(gather(open_as_gateway(config)), config)
    assert is_used(findings), [each for each in findings if each.state == "error"]
    told = " ".join(f"{each.name} {each.found} {each.why}" for each in findings)
    assert "rxe0" in told
    assert "soft-RoCE" in told
    assert not [each for each in findings if each.state == "error"]


def test_a_device_that_is_not_there_is_said() -> None:
    config = RdmaConfig(device="mlx5_9")
    findings = check(gather(open_as_gateway(config)), config)
    assert not is_used(findings)
    assert any("mlx5_9" in each.found + each.why for each in findings)
