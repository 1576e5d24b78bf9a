"""An S3 origin that counts what it is asked: SeaweedFS, and its own figures by operation."""

import urllib.request
from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import HOST, free_port

_REQUESTS = "SeaweedFS_s3_request_total"


class CountedOrigin(SeaweedFS):
    """SeaweedFS with its metrics to be read."""

    name = "origin"

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        self._metrics_port = free_port()
        self.options = (f"-metricsPort={self._metrics_port}", f"-metricsIp={HOST}")

    def requests(self) -> Counter[str]:
        """How many requests it has answered since it was started, by operation."""
        url = f"http://{HOST}:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return requests_of(answer.read().decode())


def requests_of(metrics: str) -> Counter[str]:
    """Requests by operation, from the text of SeaweedFS's metrics."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _REQUESTS:
                found[sample.labels["type"]] += int(sample.value)
    return found
