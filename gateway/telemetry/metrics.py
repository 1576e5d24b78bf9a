"""The node's metrics, one object built once and handed down; names are a contract.

Everything counts what happened, nothing decides: no code reads a metric back. Where a node is
several processes (`processes.py`), each has its Metrics and any of them tells of all.
"""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.telemetry import processes

# From a page-cache hit to a cold object behind a slow origin.
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class Metrics:
    """All metrics of one node, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"feedrack_{name}", text, labels, registry=registry)

        def gauge(
            name: str,
            text: str,
            *labels: str,
            over_processes: Literal["livesum", "livemostrecent"] = "livesum",
        ) -> Gauge:
            return Gauge(
                f"feedrack_{name}",
                text,
                labels,
                registry=registry,
                multiprocess_mode=over_processes,
            )

        def state(name: str, text: str, *labels: str) -> Gauge:
            """A gauge of the node: one process sets it, and one that took over from another."""
            return gauge(name, text, *labels, over_processes="livemostrecent")

        self.requests = counter(
            "requests_total", "S3 requests answered.", "operation", "code", "tenant"
        )
        self.request_seconds = Histogram(
            "feedrack_request_seconds",
            "Time from a request's head to its answer's last byte.",
            ("operation", "tier"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.requests_in_flight = gauge("requests_in_flight", "S3 requests being answered.")
        self.connections = gauge("connections", "Open client connections.")
        self.connections_refused = counter(
            "connections_refused_total", "Client connections refused or cut.", "reason"
        )
        self.read_bytes = counter("read_bytes_total", "Object bytes sent, by tier.", "tier")
        self.cross_rack_bytes = counter(
            "cross_rack_bytes_total", "Bytes that crossed a rack boundary."
        )
        self.origin_requests = counter(
            "origin_requests_total", "Requests sent to origins.", "operation"
        )
        self.origin_read_bytes = counter(
            "origin_read_bytes_total", "Object bytes read from origins."
        )
        self.origin_errors = counter(
            "origin_errors_total", "Origin requests that failed after retries.", "operation"
        )
        self.cache_bytes = state("cache_bytes", "Bytes the cache takes on disk.")
        self.cache_capacity_bytes = state("cache_capacity_bytes", "Bytes the cache may take.")
        self.cache_degraded = state(
            "cache_degraded", "1 while the cache disk takes nothing in (pass-through).", "reason"
        )
        self.cache_corrupt = counter(
            "cache_corrupt_total", "Kept spans dropped because a checksum did not match."
        )
        self.cache_unkept = counter("cache_unkept_total", "Spans served but not kept.", "reason")
        self.packed_cold_reads = counter(
            "packed_cold_reads_total",
            "Cold reads of packed objects, by what was fetched: the object's range or its shard.",
            "fetched",
        )
        self.peer_requests = counter(
            "peer_requests_total",
            "Requests to other nodes, by what was asked and the answer's status or what was amiss.",
            "asked",
            "outcome",
        )
        self.peer_seconds = Histogram(
            "feedrack_peer_seconds",
            "Time from a request to another node to the head of its answer.",
            ("asked",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.peer_answers = counter(
            "peer_answers_total", "Requests of other nodes answered.", "path", "code"
        )
        self.peer_sent_bytes = counter("peer_sent_bytes_total", "Bytes given to other nodes.")
        self.fills = counter(
            "fills_total", "Spans filled, by where their last bytes came from.", "tier"
        )
        self.fills_in_flight = gauge("fills_in_flight", "Spans being filled now.")
        self.evicted_bytes = counter("evicted_bytes_total", "Bytes evicted from the cache.")
        self.rdma_sessions = state("rdma_sessions", "Clients connected by RDMA.")
        self.rdma_sessions_ended = counter(
            "rdma_sessions_ended_total", "Connections by RDMA that ended.", "reason"
        )
        self.rdma_transfers = counter(
            "rdma_transfers_total",
            "Payloads that were to move by RDMA, by what became of that.",
            "operation",
            "outcome",
        )
        self.rdma_bytes = counter("rdma_bytes_total", "Bytes moved by RDMA.", "operation")
        self.rdma_copied_bytes = counter(
            "rdma_copied_bytes_total",
            "Bytes copied into or out of registered buffers to be moved by RDMA.",
            "operation",
        )
        self.rdma_fallbacks = counter(
            "rdma_fallbacks_total",
            "Requests that came over HTTP from clients that have RDMA, by why.",
            "reason",
        )
        self.rdma_buffers_free = state("rdma_buffers_free", "Registered buffers nobody has.")
        self.rdma_peer_buffers_free = state(
            "rdma_peer_buffers_free", "Buffers that no other node is to write into."
        )
        self.rdma_peer_fallbacks = counter(
            "rdma_peer_fallbacks_total",
            "Spans that other nodes were asked for over HTTP though large, by why.",
            "reason",
        )
        self.rdma_mapped_bytes = state(
            "rdma_mapped_bytes", "Bytes of chunk files that are registered where they lie."
        )
        self.members = state("members", "Nodes alive in the cluster.")
        self.lease_seconds = state(
            "lease_seconds", "What is left of this node's lease on what it remembers; 0: none."
        )
        self.changes_in_flight = state(
            "changes_in_flight", "Writes of all nodes that are under way, as this one knows."
        )
        self.change_seconds = Histogram(
            "feedrack_change_seconds",
            "Time until every member had heard of a write of this node.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.redis_commands = counter("redis_commands_total", "Commands sent to Redis.")
        self.rebuilding_ratio = state(
            "rebuilding_ratio", "How far what is being rebuilt is, 0 to 1; 1: done.", "what"
        )

    def render(self) -> bytes:
        """The Prometheus text exposition of everything, over all processes of the node."""
        folder = processes.shared_folder()
        return generate_latest(self.registry) if folder is None else processes.render(folder)
