"""A node's metrics: the names of the contract, in an exposition that Prometheus reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_counters_carry_the_names_and_labels_of_the_contract() -> None:
    metrics = Metrics()
    metrics.requests.labels(operation="GetObject", code="200", tenant="demo").inc()
    metrics.read_bytes.labels(tier="disk").inc(5)
    metrics.cross_rack_bytes.inc(6)
    metrics.origin_requests.labels(operation="HeadObject").inc(2)
    metrics.origin_read_bytes.inc(7)
    metrics.evicted_bytes.inc(8)
    for name, labels, expected in (
        ("requests_total", {"operation": "GetObject", "code": "200", "tenant": "demo"}, 1),
        ("read_bytes_total", {"tier": "disk"}, 5),
        ("cross_rack_bytes_total", {}, 6),
        ("origin_requests_total", {"operation": "HeadObject"}, 2),
        ("origin_read_bytes_total", {}, 7),
        ("evicted_bytes_total", {}, 8),
    ):
        assert value(metrics, f"feedrack_{name}", **labels) == expected


@pytest.mark.parametrize(
    "name", ["cache_bytes", "cache_capacity_bytes", "fills_in_flight", "members"]
)
def test_gauges_carry_the_names_of_the_contract_and_start_at_zero(name: str) -> None:
    metrics = Metrics()
    assert value(metrics, f"feedrack_{name}") == 0
    getattr(metrics, name).set(3)
    assert value(metrics, f"feedrack_{name}") == 3


def test_requests_are_timed_from_a_tenth_of_a_millisecond_to_a_minute() -> None:
    metrics = Metrics()
    labels = {"operation": "GetObject", "tier": "disk"}
    for seconds in (0.00005, 0.03, 59.0, 300.0):
        metrics.request_seconds.labels(**labels).observe(seconds)
    name = "feedrack_request_seconds"
    assert value(metrics, f"{name}_count", **labels) == 4
    assert value(metrics, f"{name}_sum", **labels) == pytest.approx(359.03005)
    within = [
        value(metrics, f"{name}_bucket", le=le, **labels)
        for le in ("0.0001", "0.05", "60.0", "+Inf")
    ]
    assert within == [1, 2, 3, 4]


def test_two_nodes_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.origin_read_bytes.inc(5)
    assert value(other, "feedrack_origin_read_bytes_total") == 0


def test_every_metric_is_explained_and_ours() -> None:
    families = list(text_string_to_metric_families(Metrics().render().decode()))
    assert len(families) > 10
    for family in families:
        assert family.name.startswith("feedrack_")
        assert family.documentation.endswith(".")
