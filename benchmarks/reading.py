"""Ways in which a training process reads small objects, each a process of its own.

It is asked over standard input, opens what it needs, reads once without the clock, says that it is
ready, waits for a line, and then reads as long as it may: objects in a shuffled order, by the batch
where the way has batches. One object in 64 is hashed afterwards.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import boto3
import msgspec
from botocore.config import Config
from msgspec import Struct

from benchmarks import objects
from benchmarks.server import ACCESS_KEY, SECRET_KEY
from feedrack import Dataset, open_dataset

Way = Literal["boto3", "batch", "short circuit", "views", "files", "epoch"]
_THREADS = 16
_SAMPLE_EVERY = 64
_WARM_BOTO3 = 512


class Asked(Struct, frozen=True, kw_only=True):
    """How to read which objects. `folder`: where they lie as files, for the way "files".

    "epoch" reads all of them once in an `order`; the others read for `seconds`, `batch` objects at
    a time."""

    way: Way
    endpoint_url: str
    bucket: str
    prefix: str
    count: int
    size_bytes: int
    folder: str = ""
    batch: int = 256
    seconds: float = 1.0
    order: str = "lexical"


class Told(Struct, frozen=True, kw_only=True):
    """What was read. `wrong`: objects that were not what they should be, or not read in that way.

    `opening_seconds`: an epoch's listing, before the clock starts."""

    objects: int
    seconds: float
    cpu_seconds: float
    opening_seconds: float
    wrong: int


Kept = list[tuple[int, bytes | memoryview]]


def main() -> None:
    """One way, once."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    with ExitStack() as stack:
        told = _WAYS[asked.way](asked, stack)
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _boto3(asked: Asked, _: ExitStack) -> Told:
    client: Any = boto3.client(
        "s3",
        endpoint_url=asked.endpoint_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(max_pool_connections=_THREADS),
    )

    def get(number: int) -> bytes:
        key = objects.key(asked.prefix, number)
        body: bytes = client.get_object(Bucket=asked.bucket, Key=key)["Body"].read()
        return body

    for number in range(min(asked.count, _WARM_BOTO3)):
        get(number)
    _ready()
    kept: Kept = []
    done = [0] * _THREADS
    until = time.monotonic() + asked.seconds

    def work(thread: int) -> None:
        for number in cycle(_shuffled(asked.count, thread)):
            if time.monotonic() >= until:
                return
            data = get(number)
            done[thread] += 1
            if done[thread] % _SAMPLE_EVERY == 1:
                kept.append((number, data))

    began, cpu = time.monotonic(), time.process_time()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _told(asked, sum(done), began, cpu, kept)


def _files(asked: Asked, _: ExitStack) -> Told:
    names = [
        str(Path(asked.folder) / objects.key(asked.prefix, number)) for number in range(asked.count)
    ]

    def read(numbers: Sequence[int]) -> list[bytes]:
        found = []
        for number in numbers:
            # The plain tree: what a program does that has its data as files.
            with open(names[number], "rb") as file:  # noqa: PTH123 - what is measured
                found.append(file.read())
        return found

    return _timed(asked, read)


def _opened(asked: Asked, stack: ExitStack, *, short_circuit: bool) -> Dataset:
    return stack.enter_context(
        open_dataset(
            f"s3://{asked.bucket}/{asked.prefix}/",
            endpoint_url=asked.endpoint_url,
            region="us-east-1",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            short_circuit=short_circuit,
        )
    )


def _batch(asked: Asked, stack: ExitStack) -> Told:
    return _timed(asked, _opened(asked, stack, short_circuit=False).read_batch)


def _short_circuit(asked: Asked, stack: ExitStack) -> Told:
    dataset = _opened(asked, stack, short_circuit=True)
    told = _timed(asked, dataset.view_batch if asked.way == "views" else dataset.read_batch)
    here = dataset.near.read(range(asked.count)) if dataset.near is not None else None
    away = asked.count if here is None else here.count(None)
    return msgspec.structs.replace(told, wrong=told.wrong + away)


def _epoch(asked: Asked, stack: ExitStack) -> Told:
    _ready()
    began, cpu = time.monotonic(), time.process_time()
    dataset = _opened(asked, stack, short_circuit=False)
    opening_seconds = time.monotonic() - began
    kept: Kept = []
    done = wrong = 0
    for key, data in dataset.items(asked.order, batch_size=asked.batch):
        if done % _SAMPLE_EVERY == 0:
            kept.append((int(key.rpartition("/")[2]), data))
        done += 1
        wrong += len(data) != asked.size_bytes
    told = _told(asked, done, began, cpu, kept)
    return msgspec.structs.replace(
        told, opening_seconds=opening_seconds, wrong=told.wrong + wrong + asked.count - done
    )


def _timed(asked: Asked, read: Callable[[Sequence[int]], Sequence[bytes | memoryview]]) -> Told:
    """Reads all once in order, then batches in a shuffled order until the time is up."""
    for start in range(0, asked.count, asked.batch):
        read(range(start, min(start + asked.batch, asked.count)))
    order = _shuffled(asked.count, 0)
    batches = [order[at : at + asked.batch] for at in range(0, len(order), asked.batch)]
    _ready()
    kept: Kept = []
    done = 0
    began, cpu = time.monotonic(), time.process_time()
    until = began + asked.seconds
    for batch in cycle(batches):
        found = read(batch)
        kept += zip(batch[::_SAMPLE_EVERY], found[::_SAMPLE_EVERY], strict=True)
        done += len(batch)
        if time.monotonic() >= until:
            break
    return _told(asked, done, began, cpu, kept)


def _shuffled(count: int, seed: int) -> list[int]:
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    return numbers


def _told(asked: Asked, done: int, began: float, cpu: float, kept: Kept) -> Told:
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    wrong = sum(
        sha256(data).hexdigest() != objects.sha256_hex(number, 0, asked.size_bytes)
        for number, data in kept
    )
    return Told(
        objects=done,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        opening_seconds=0.0,
        wrong=wrong,
    )


_WAYS: dict[Way, Callable[[Asked, ExitStack], Told]] = {
    "boto3": _boto3,
    "batch": _batch,
    "short circuit": _short_circuit,
    "views": _short_circuit,
    "files": _files,
    "epoch": _epoch,
}


if __name__ == "__main__":
    main()
