"""kill -9 at random points of a mixed load, again and again: nothing acknowledged is lost, nothing
half-written is seen, no wrong byte is served, and the cache stays within its capacity.

The seed is printed; SEED=… repeats a run, ROUNDS=… makes it longer.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.node.process import GatewayProcess

_CHUNK_BYTES = 1024 * 1024
_PART_BYTES = 5 * 1024 * 1024
_SIZES = (0, 1, 4096, 90_000, 300_000, 1_100_000, 3_000_000)
_CAPACITY_BYTES = 24 * 1024 * 1024


class Name(NamedTuple):
    bucket: str
    key: str


class Value(NamedTuple):
    """A body that no offset repeats, told by what makes it."""

    size_bytes: int
    seed: int

    def body(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size_bytes)


_NAMES = [Name("crash", f"k{n}") for n in range(24)]


class Truth:
    """What may be read of each name: the acknowledged value, or any of those in doubt since.

    Each change is an instant, so that a reader may ask for all that was possible since it began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instant = 0
        self._states: dict[Name, list[tuple[int, frozenset[Value | None]]]] = {}
        self._settled: set[Name] = set()
        self._busy = {name: threading.Lock() for name in _NAMES}
        for name in _NAMES:
            self._change(name, frozenset({None}))

    def writing(self, name: Name) -> threading.Lock:
        """One writer a name, so that the order of acknowledged writes is known."""
        return self._busy[name]

    def attempt(self, name: Name, value: Value | None) -> None:
        with self._lock:
            latest = self._states[name][-1][1] if name in self._states else frozenset({None})
            self._settled.discard(name)
            self._change(name, latest | {value})

    def acknowledged(self, name: Name, value: Value | None) -> None:
        with self._lock:
            self._change(name, frozenset({value}))

    def settled(self, name: Name, value: Value | None) -> None:
        """No reader is left, and this is what was found: the past no longer counts."""
        with self._lock:
            del self._states[name]
            self._settled.add(name)
            self._change(name, frozenset({value}))

    def is_settled(self, name: Name) -> bool:
        """Whether nothing was attempted since it was settled."""
        with self._lock:
            return name in self._settled

    def now(self) -> int:
        with self._lock:
            return self._instant

    def possible(self, name: Name) -> frozenset[Value | None]:
        with self._lock:
            return self._states[name][-1][1]

    def possible_since(self, name: Name, instant: int) -> set[Value | None]:
        """What was possible at `instant` or at any since."""
        with self._lock:
            found: set[Value | None] = set()
            for at, values in reversed(self._states[name]):
                found |= values
                if at <= instant:
                    break
            return found

    def names(self, bucket: str) -> list[Name]:
        with self._lock:
            return [name for name in self._states if name.bucket == bucket]

    def _change(self, name: Name, values: frozenset[Value | None]) -> None:
        self._instant += 1
        self._states.setdefault(name, []).append((self._instant, values))


def _read(client: Any, name: Name) -> bytes | None:
    try:
        answer = client.get_object(Bucket=name.bucket, Key=name.key)
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise
    body: bytes = answer["Body"].read()
    return body


def _is(found: bytes | None, value: Value | None) -> bool:
    if found is None or value is None:
        return found is None and value is None
    return len(found) == value.size_bytes and found == value.body()


class Load:
    """One client's mixed load against a node that `killed` tells to be gone."""

    def __init__(
        self,
        node: GatewayProcess,
        truth: Truth,
        seed: int,
        killed: threading.Event,
        wrong: list[str],
    ) -> None:
        self._truth = truth
        self._rng = random.Random(seed)
        self._killed = killed
        self._wrong = wrong
        self._client = node.client(connect_timeout=10, read_timeout=60)
        self._label = f"{seed:x}"
        self._written = 0

    def run(self) -> None:
        actions = {
            self._read_all: 30,
            self._read_range: 22,
            self._put: 24,
            self._put_parts: 2,
            self._write_once: 10,
            self._copy: 6,
            self._delete: 6,
        }
        while not self._killed.is_set():
            [action] = self._rng.choices(list(actions), weights=list(actions.values()))
            try:
                action()
            except (BotoCoreError, ClientError, OSError) as error:
                # A node that was killed under a request leaves in doubt what the request meant.
                if not self._killed.is_set():
                    self._wrong.append(f"{action.__name__}: {error!r}")

    def _read_all(self) -> None:
        name = self._any_name()
        begun = self._truth.now()
        try:
            found = _read(self._client, name)
        except BotoCoreError:
            # An answer breaks off where its object is replaced under it, and only there.
            if len(self._truth.possible_since(name, begun)) > 1:
                return
            raise
        possible = self._truth.possible_since(name, begun)
        if not any(_is(found, value) for value in possible):
            length = None if found is None else len(found)
            self._wrong.append(f"{name}: read {length} bytes, possible {possible}")

    def _read_range(self) -> None:
        name = self._any_name()
        edge = self._rng.choice((0, _CHUNK_BYTES, 2 * _CHUNK_BYTES, self._rng.randrange(1 << 22)))
        first = max(0, edge + self._rng.randrange(-5000, 5000))
        last = first + self._rng.choice((0, 100, 70_000, _CHUNK_BYTES))
        begun = self._truth.now()
        try:
            answer = self._client.get_object(
                Bucket=name.bucket, Key=name.key, Range=f"bytes={first}-{last}"
            )
            total = int(answer["ContentRange"].rpartition("/")[2])
            found = answer["Body"].read()
        except ClientError as error:
            code = error.response["Error"]["Code"]
            possible = self._truth.possible_since(name, begun)
            missing = code == "NoSuchKey" and None in possible
            beyond = code == "InvalidRange" and any(
                value is not None and value.size_bytes <= first for value in possible
            )
            if missing or beyond:
                return
            raise
        except BotoCoreError:
            if len(self._truth.possible_since(name, begun)) > 1:
                return
            raise
        possible = self._truth.possible_since(name, begun)
        if not any(
            value is not None
            and value.size_bytes == total
            and found == value.body()[first : last + 1]
            for value in possible
        ):
            self._wrong.append(
                f"{name}: {first}-{last} of {total} gave {len(found)} bytes, possible {possible}"
            )

    def _put(self) -> None:
        name, value = self._rng.choice(_NAMES), self._new_value(_SIZES)
        with self._truth.writing(name):
            self._put_value(name, value)

    def _write_once(self) -> None:
        self._written += 1
        name = Name("forever", f"{self._label}-{self._written}")
        self._put_value(name, self._new_value(_SIZES[:-1]))

    def _put_value(self, name: Name, value: Value) -> None:
        self._truth.attempt(name, value)
        self._client.put_object(Bucket=name.bucket, Key=name.key, Body=value.body())
        self._truth.acknowledged(name, value)

    def _put_parts(self) -> None:
        name = self._rng.choice(_NAMES)
        value = self._new_value([_PART_BYTES + 1, _PART_BYTES + 700_000, 2 * _PART_BYTES])
        body = value.body()
        target = {"Bucket": name.bucket, "Key": name.key}
        upload = self._client.create_multipart_upload(**target)["UploadId"]
        parts = [
            {
                "PartNumber": number,
                "ETag": self._client.upload_part(
                    **target, UploadId=upload, PartNumber=number, Body=part
                )["ETag"],
            }
            for number, part in enumerate((body[:_PART_BYTES], body[_PART_BYTES:]), 1)
        ]
        with self._truth.writing(name):
            self._truth.attempt(name, value)
            self._client.complete_multipart_upload(
                **target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
            self._truth.acknowledged(name, value)

    def _copy(self) -> None:
        source, target = self._rng.sample(_NAMES, 2)
        # In the order of their names, so that two copies never wait for each other.
        first, second = sorted((source, target))
        with self._truth.writing(first), self._truth.writing(second):
            [value, *others] = self._truth.possible(source)
            if value is None or others:
                return
            self._truth.attempt(target, value)
            self._client.copy_object(
                Bucket=target.bucket,
                Key=target.key,
                CopySource={"Bucket": source.bucket, "Key": source.key},
            )
            self._truth.acknowledged(target, value)

    def _delete(self) -> None:
        name = self._rng.choice(_NAMES)
        with self._truth.writing(name):
            self._truth.attempt(name, None)
            self._client.delete_object(Bucket=name.bucket, Key=name.key)
            self._truth.acknowledged(name, None)

    def _any_name(self) -> Name:
        written_once = self._truth.names("forever")
        if written_once and self._rng.random() < 0.25:
            return self._rng.choice(written_once)
        return self._rng.choice(_NAMES)

    def _new_value(self, sizes: Sequence[int]) -> Value:
        return Value(self._rng.choice(sizes), self._rng.randrange(1 << 60))


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


def _listed(client: Any, bucket: str) -> set[Name]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {Name(bucket, entry["Key"]) for page in pages for entry in page.get("Contents", [])}


def _settle(node: GatewayProcess, truth: Truth, rng: random.Random, said: str) -> None:
    """After a restart each name has one of its possible values, and keeps it."""
    client = node.client()
    written_once = truth.names("forever")
    # All of the latest round, and some of those that have outlived a kill before.
    names = [*_NAMES, *(name for name in written_once if not truth.is_settled(name))]
    old = [name for name in written_once if truth.is_settled(name)]
    names += rng.sample(old, min(20, len(old)))
    found: dict[Name, Value | None] = {}
    for name in names:
        body = _read(client, name)
        matches = [value for value in truth.possible(name) if _is(body, value)]
        assert matches, f"{name} after a kill ({said})"
        found[name] = matches[0]
    for name, value in found.items():
        assert _is(_read(client, name), value), f"{name} when read again ({said})"
    listed = _listed(client, "crash") | _listed(client, "forever")
    present = {name for name, value in found.items() if value is not None}
    assert listed & found.keys() == present, said
    assert listed <= {*_NAMES, *written_once}, said
    for name, value in found.items():
        truth.settled(name, value)


@pytest.mark.timeout(300)
def test_kills_at_random_points_lose_and_falsify_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    rounds = int(os.environ.get("ROUNDS", "6"))
    said = f"SEED={seed}"
    sys.stdout.write(f"{said}\n")
    rng = random.Random(seed)
    node = GatewayProcess(
        tmp_path / "node",
        {
            "cache": {"capacity": _CAPACITY_BYTES},
            "buckets": {"crash": {"freshness_seconds": 3600}, "forever": {"immutable": True}},
        },
    ).start()
    for bucket in ("crash", "forever"):
        node.client().create_bucket(Bucket=bucket)
    truth = Truth()
    wrong: list[str] = []
    killed = threading.Event()
    try:
        for _ in range(rounds):
            killed = threading.Event()
            loads = [Load(node, truth, rng.randrange(1 << 60), killed, wrong) for _ in range(6)]
            threads = [threading.Thread(target=load.run) for load in loads]
            for thread in threads:
                thread.start()
            kill_at = time.monotonic() + rng.uniform(0.3, 2.5)
            while time.monotonic() < kill_at:
                # A file that gets its name while others are counted is counted twice: look again.
                looks = (_on_disk(tmp_path / "node/cache") for _ in range(5))
                assert any(look <= _CAPACITY_BYTES for look in looks)
                killed.wait(0.02)
            killed.set()
            node.kill()
            for thread in threads:
                thread.join(timeout=60)
            assert not wrong, f"{said}: {wrong[:5]}"
            node.start()
            _settle(node, truth, rng, said)
        assert node.stop() == 0
    finally:
        # Whatever has gone wrong: nobody goes on asking a node that is gone.
        killed.set()
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
