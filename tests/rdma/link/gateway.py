"""A gateway in the first of two machines, which says in the shared folder how it is doing: the
second can read that also while the wire between them is cut. There the second says, too, whether
the first's card is to lose packets, and its gateway to be killed. It imports no more than it must,
since that takes long where processors are emulated."""

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from gateway import config as configuration
from gateway.app import Node

ADDRESS = "10.77.0.1:9000"
ACCESS_KEY = "demo"
SECRET_KEY = "demo-secret"  # a test's, on a wire of its own
BUFFERS = 16
FOLDER = Path("/run/tmp/gateway")
BUCKET = FOLDER / "data" / "train"
TOLD = Path("/run/shared/gateway.json")
# Once it is there, the gateway is killed; server.sh starts another.
KILL = Path("/run/shared/kill")
# What per cent of its packets the card is to lose; none where it is not there.
LOSS = Path("/run/shared/loss")
_CARD = "eth0"
_COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")


def settings() -> dict[str, object]:
    """The configuration of a gateway that keeps all in `FOLDER`; there is a bucket "train"."""
    BUCKET.mkdir(parents=True, exist_ok=True)
    (FOLDER / "secret").write_text(SECRET_KEY)
    return {
        "node": {"id": "n1"},
        "s3": {"listen": ADDRESS},
        "admin": {"listen": "127.0.0.1:0"},
        "rdma": {
            "mode": "required",
            "buffers": f"{BUFFERS}MiB",
            "transfer_timeout_seconds": 60.0,
        },
        "cache": {"path": str(FOLDER / "cache"), "capacity": "256MiB"},
        "origins": {"main": {"type": "directory", "path": str(FOLDER / "data")}},
        "default_origin": "main",
        "buckets": {"train": {"freshness_seconds": 0}},
        "tenants": [
            {
                "name": "demo",
                "access_key": ACCESS_KEY,
                "secret_key_file": str(FOLDER / "secret"),
                "policy": [{"allow": ["*"]}],
            }
        ],
    }


def lose(percent: float) -> None:
    """Has this machine's card lose so many of the packets that it is to send from now on."""
    netem = ["replace", "dev", _CARD, "root", "netem", "loss", f"{percent}%"]
    subprocess.run(["tc", "qdisc", *(netem if percent else ["del", *netem[1:4]])], check=True)


def wanted_loss() -> float:
    """What the second machine wants to be lost here."""
    try:
        return float(LOSS.read_text())
    except FileNotFoundError:
        return 0


def counted(name: str) -> int:
    """A counter of this machine's device."""
    return int((_COUNTERS / name).read_text())


def tell(node: Node, loss: float) -> None:
    """Says how it is doing."""
    failed = sum(
        sample.value
        for metric in node.metrics.rdma_transfers.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["outcome"] == "failed"
    )
    told = {
        "buffers": node.parts.rdma.buffers_free,
        "failed": failed,
        "time": time.monotonic(),
        "process": os.getpid(),
        "loss": loss,
        "asked_again": counted("completer_retry_err"),
        "stored": sum(1 for each in BUCKET.iterdir() if not each.name.startswith(".")),
    }
    draft = TOLD.with_suffix(".new")
    draft.write_text(json.dumps(told))
    draft.rename(TOLD)


async def main() -> None:
    node = Node(configuration.parse(settings()))
    await node.start()
    loss = 0.0
    while True:
        if KILL.exists():
            KILL.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (wanted := wanted_loss()) != loss:
            lose(wanted)
            loss = wanted
        tell(node, loss)
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
