"""An S3 origin that counts what it is asked: SeaweedFS, and its own figures by operation."""

import urllib.request
from collections import Counter
from pathlib import Path

import boto3
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import ACCESS_KEY, HOST, SECRET_KEY, free_port

_REQUESTS = "SeaweedFS_s3_request_total"
_SENT_BYTES = "SeaweedFS_s3_bucket_traffic_sent_bytes_total"


class CountedOrigin(SeaweedFS):
    """SeaweedFS with its metrics to be read; `host` and `prefix` are where it runs."""

    name = "origin"

    def __init__(
        self, data: Path, folder: Path, host: str = HOST, prefix: tuple[str, ...] = ()
    ) -> None:
        super().__init__(data, folder)
        self.host, self.prefix = host, prefix
        self._metrics_port = free_port()
        self.options = (f"-metricsPort={self._metrics_port}", f"-metricsIp={host}")

    def make_bucket(self, name: str) -> None:
        boto3.client(
            "s3",
            endpoint_url=f"http://{self.host}:{self.port}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        ).create_bucket(Bucket=name)

    def requests(self) -> Counter[str]:
        """How many requests it has answered since it was started, by operation."""
        return requests_of(self._metrics())

    def sent_bytes(self) -> int:
        """Bytes of bodies that it has sent since it was started."""
        return sent_bytes_of(self._metrics())

    def _metrics(self) -> str:
        url = f"http://{self.host}:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())


def requests_of(metrics: str) -> Counter[str]:
    """Requests by operation, from the text of SeaweedFS's metrics."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _REQUESTS:
                found[sample.labels["type"]] += int(sample.value)
    return found


def sent_bytes_of(metrics: str) -> int:
    """Bytes sent in answers, from the same text."""
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == _SENT_BYTES
    )
