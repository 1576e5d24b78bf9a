"""kill -9 at random points of a mixed load, again and again: nothing acknowledged is lost, nothing
half-written is seen, no wrong byte is served, and the cache stays within its capacity.

The seed is printed; SEED=… repeats a run, ROUNDS=… makes it longer.
"""

import hashlib
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.node.process import GatewayProcess

_KEYS = [f"k{n}" for n in range(24)]
_SIZES = (0, 1, 4096, 90_000, 300_000, 1_100_000, 3_000_000)
_CAPACITY_BYTES = 24 * 1024 * 1024


class Truth:
    """What may be read of each key: the acknowledged value, or any of those in doubt since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._possible: dict[str, set[str | None]] = {key: {None} for key in _KEYS}
        self._busy: dict[str, threading.Lock] = {key: threading.Lock() for key in _KEYS}

    def writing(self, key: str) -> threading.Lock:
        """One writer a key, so that the order of acknowledged writes is known."""
        return self._busy[key]

    def attempt(self, key: str, digest: str | None) -> None:
        with self._lock:
            self._possible[key].add(digest)

    def acknowledged(self, key: str, digest: str | None) -> None:
        with self._lock:
            self._possible[key] = {digest}

    def possible(self, key: str) -> set[str | None]:
        with self._lock:
            return set(self._possible[key])


def _body(rng: random.Random) -> bytes:
    size = rng.choice(_SIZES)
    return rng.randbytes(min(size, 64)) * (size // 64 + 1) if size > 64 else rng.randbytes(size)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _read(client: Any, key: str) -> str | None:
    try:
        return _digest(client.get_object(Bucket="crash", Key=key)["Body"].read())
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise


def _load(
    node: GatewayProcess, truth: Truth, seed: int, stop: threading.Event, wrong: list[str]
) -> None:
    rng = random.Random(seed)
    client = node.client(connect_timeout=2, read_timeout=10)
    while not stop.is_set():
        key = rng.choice(_KEYS)
        try:
            choice = rng.random()
            if choice < 0.5:
                before = truth.possible(key)
                found = _read(client, key)
                after = truth.possible(key)
                if found not in before | after:
                    wrong.append(f"{key}: read {found}, possible {before | after}")
            elif choice < 0.6:
                with truth.writing(key):
                    truth.attempt(key, None)
                    client.delete_object(Bucket="crash", Key=key)
                    truth.acknowledged(key, None)
            else:
                body = _body(rng)
                with truth.writing(key):
                    truth.attempt(key, _digest(body))
                    client.put_object(Bucket="crash", Key=key, Body=body)
                    truth.acknowledged(key, _digest(body))
        except (BotoCoreError, ClientError, OSError):
            # The node was killed under the request: what it meant stays possible.
            if stop.is_set():
                return


def _on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            total += stat.st_blocks * 512
    return total


@pytest.mark.timeout(300)
def test_kills_at_random_points_lose_and_falsify_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    rounds = int(os.environ.get("ROUNDS", "6"))
    sys.stdout.write(f"SEED={seed}\n")
    rng = random.Random(seed)
    node = GatewayProcess(
        tmp_path / "node",
        {"cache": {"capacity": _CAPACITY_BYTES}, "buckets": {"crash": {"freshness_seconds": 3600}}},
    ).start()
    node.client().create_bucket(Bucket="crash")
    truth = Truth()
    wrong: list[str] = []
    try:
        for _ in range(rounds):
            stop = threading.Event()
            threads = [
                threading.Thread(
                    target=_load, args=(node, truth, rng.randrange(1 << 30), stop, wrong)
                )
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            kill_at = time.monotonic() + rng.uniform(0.3, 2.5)
            while time.monotonic() < kill_at:
                assert _on_disk(tmp_path / "node/cache") <= _CAPACITY_BYTES
                stop.wait(0.02)
            node.kill()
            stop.set()
            for thread in threads:
                thread.join(timeout=60)
            node.start()
            client = node.client()
            for _ in ("from the origin or disk", "warm"):
                for key in _KEYS:
                    found = _read(client, key)
                    assert found in truth.possible(key), f"{key} after a kill (SEED={seed})"
            listed = {
                entry["Key"] for entry in client.list_objects_v2(Bucket="crash").get("Contents", [])
            }
            for key in _KEYS:
                assert (_read(client, key) is not None) == (key in listed)
                # From here on what was found is what counts.
                truth.acknowledged(key, _read(client, key))
        assert not wrong, f"SEED={seed}: {wrong[:5]}"
        assert node.stop() == 0
    finally:
        if node.process is not None and node.process.poll() is None:
            node.kill()


def test_a_flipped_bit_on_disk_is_refetched_and_counted_never_served(tmp_path: Path) -> None:
    node = GatewayProcess(tmp_path / "node").start()
    try:
        client = node.client()
        client.create_bucket(Bucket="flip")
        large = random.Random(1).randbytes(3_000_000)
        small = [random.Random(n).randbytes(50_000) for n in range(40)]
        client.put_object(Bucket="flip", Key="large", Body=large)
        for n, body in enumerate(small):
            client.put_object(Bucket="flip", Key=f"small{n}", Body=body)
        assert node.stop() == 0
        flipped = 0
        for path in sorted((tmp_path / "node/cache").rglob("*")):
            if (
                path.is_file()
                and path.parts[-3:-1] != ()
                and ("chunks" in path.parts or "shards" in path.parts)
            ):
                data = bytearray(path.read_bytes())
                for position in range(20_000, len(data), 40_000):
                    data[position] ^= 0x10
                    flipped += 1
                path.write_bytes(data)
        assert flipped > 50
        node.start()
        client = node.client()
        assert client.get_object(Bucket="flip", Key="large")["Body"].read() == large
        for n, body in enumerate(small):
            assert client.get_object(Bucket="flip", Key=f"small{n}")["Body"].read() == body
        assert node.counter("feedrack_cache_corrupt_total") > 0
    finally:
        node.kill()
