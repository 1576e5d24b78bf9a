"""A gateway in the first of two machines, which says in the shared folder how it is doing: the
second can read that also while the wire between them is cut. It imports no more than it must, since
that takes long where processors are emulated."""

import asyncio
import json
from pathlib import Path

from gateway import config as configuration
from gateway.app import Node

ADDRESS = "10.77.0.1:9000"
ACCESS_KEY = "demo"
SECRET_KEY = "demo-secret"  # a test's, on a wire of its own
BUFFERS = 16
TOLD = Path("/run/shared/gateway.json")


def settings(folder: Path) -> dict[str, object]:
    """The configuration of a gateway that keeps all in a folder; there is a bucket "train"."""
    (folder / "data" / "train").mkdir(parents=True)
    (folder / "secret").write_text(SECRET_KEY)
    return {
        "node": {"id": "n1"},
        "s3": {"listen": ADDRESS},
        "admin": {"listen": "127.0.0.1:0"},
        "rdma": {
            "mode": "required",
            "buffers": f"{BUFFERS}MiB",
            "transfer_timeout_seconds": 60.0,
        },
        "cache": {"path": str(folder / "cache"), "capacity": "256MiB"},
        "origins": {"main": {"type": "directory", "path": str(folder / "data")}},
        "default_origin": "main",
        "buckets": {"train": {"freshness_seconds": 0}},
        "tenants": [
            {
                "name": "demo",
                "access_key": ACCESS_KEY,
                "secret_key_file": str(folder / "secret"),
                "policy": [{"allow": ["*"]}],
            }
        ],
    }


def tell(node: Node) -> None:
    """Says how it is doing."""
    failed = sum(
        sample.value
        for metric in node.metrics.rdma_transfers.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["outcome"] == "failed"
    )
    draft = TOLD.with_suffix(".new")
    draft.write_text(json.dumps({"buffers": node.parts.rdma.buffers_free, "failed": failed}))
    draft.rename(TOLD)


async def main() -> None:
    node = Node(configuration.parse(settings(Path("/run/tmp/gateway"))))
    await node.start()
    while True:
        tell(node)
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
