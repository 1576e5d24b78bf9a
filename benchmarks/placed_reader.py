"""What a job of `benchmarks.placed` runs: reads its dataset through its node's gateway, some times
over in random order, and computes a little on each object.

    python placed_reader.py URLS OUT DATASET PASSES SECONDS

URLS is JSON: signed URLs by node and dataset. OUT is the folder for what it has to say. Nothing
but the standard library, so that a job begins at once.
"""

import hashlib
import http.client
import json
import os
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


def main(urls: Path, out: Path, dataset: str, passes: int, seconds: float) -> None:
    """Computes for `seconds` an object. What it read, by tier, goes into a file of the job's name;
    RuntimeError where an answer is not what was asked for."""
    signed = json.loads(urls.read_text())[os.environ["SLURMD_NODENAME"]][dataset]
    job = os.environ["SLURM_JOB_ID"]
    order = random.Random(int(job))
    connection = http.client.HTTPConnection(urlsplit(signed[0]).netloc, timeout=120)
    tiers: dict[str, int] = {}
    reading = 0.0
    began = time.time()
    for turn in range(passes):
        order.shuffle(signed)
        for url in signed:
            asked = time.monotonic()
            connection.request("GET", url[url.index("/", 8) :])
            answer = connection.getresponse()
            body = answer.read()
            reading += time.monotonic() - asked
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {body[:300]!r}")
            if turn == 0:
                tier = answer.headers["x-feedrack-tier"]
                tiers[tier] = tiers.get(tier, 0) + len(body)
            until = time.monotonic() + seconds
            hashlib.sha256(body).digest()
            # Stands for what a GPU does meanwhile.
            time.sleep(max(0.0, until - time.monotonic()))
    said = {
        "node": os.environ["SLURMD_NODENAME"],
        "dataset": dataset,
        "tiers": tiers,
        "reading_seconds": reading,
        "began": began,
        "ended": time.time(),
    }
    draft = out / f"{job}.tmp"
    draft.write_text(json.dumps(said))
    draft.rename(out / f"{job}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
