"""A gateway in the first of two machines, which says in the shared folder how it is doing: the
second can read that also while the wire between them is cut."""

import json
import time
from pathlib import Path

from tests.node.process import GatewayProcess

ADDRESS = "10.77.0.1:9000"
BUFFERS = 16
TOLD = Path("/run/shared/gateway.json")
_FIGURES = {
    "buffers": "feedrack_rdma_buffers_free",
    "sessions": "feedrack_rdma_sessions",
    "transfers": "feedrack_rdma_transfers_total",
}


def main() -> None:
    node = GatewayProcess(
        Path("/run/tmp/gateway"),
        {
            "s3": {"listen": ADDRESS},
            "rdma": {
                "mode": "required",
                "buffers": f"{BUFFERS}MiB",
                "transfer_timeout_seconds": 60.0,
            },
            "cache": {"chunk_size": "8MiB", "small_object_limit": "1MiB"},
        },
    ).start()
    while True:
        told = {name: node.counter(metric) for name, metric in _FIGURES.items()}
        told["failed"] = node.counter(_FIGURES["transfers"], outcome="failed")
        draft = TOLD.with_suffix(".new")
        draft.write_text(json.dumps(told))
        draft.rename(TOLD)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
