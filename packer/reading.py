"""Objects read many at a time, and handed on in the order of the plan."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import xxhash

from packer.format import Record, etag_text
from packer.plan import Task
from packer.stores.protocol import (
    ConditionFailed,
    Got,
    ObjectMissing,
    ObjectUnreadable,
    Store,
    StoreError,
)

# A thread takes neighbours together: the hand-over costs as much as the reading of a small object.
_BATCH_OBJECTS = 32
_BATCH_BYTES = 2 * 1024**2

Outcome = tuple[Task, Got | StoreError]
ShardKey = Callable[[int], str]


def read_in_order(
    store: Store, tasks: Iterable[Task], jobs: int, shard_key: ShardKey
) -> Iterator[Outcome]:
    """Every task with its object, or with why it is left out, in the order given.

    `shard_key` is the key of a shard, for tasks that are moved. At most `jobs` requests at once,
    and a few MiB a job in memory. StoreError for what is wrong with more than one object."""
    batches = _batches(tasks)
    threads = ThreadPoolExecutor(jobs, thread_name_prefix="read")
    window: deque[Future[list[Outcome]]] = deque()
    try:
        for batch in islice(batches, jobs + 2):
            window.append(threads.submit(_read_all, store, batch, shard_key))
        while window:
            outcomes = window.popleft().result()
            for batch in islice(batches, 1):
                window.append(threads.submit(_read_all, store, batch, shard_key))
            yield from outcomes
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def restored(record: Record, data: bytes) -> Got:
    """A packed object, checked. StoreError where its bytes are not those of its record."""
    if len(data) != record.size_bytes or xxhash.xxh3_64_intdigest(data) != record.checksum:
        raise StoreError("the bytes in the pack are not those that were packed")
    headers = record.headers if isinstance(record.headers, dict) else {}
    return Got(data, etag_text(record.etag), headers, record.checksums, record.tags)


def _batches(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    batch: list[Task] = []
    size = 0
    for task in tasks:
        batch.append(task)
        size += task.size_bytes
        if len(batch) >= _BATCH_OBJECTS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_all(store: Store, batch: list[Task], shard_key: ShardKey) -> list[Outcome]:
    return [(task, _read(store, task, shard_key)) for task in batch]


def _read(store: Store, task: Task, shard_key: ShardKey) -> Got | StoreError:
    record = task.moved
    if record is not None and record.shard is not None:
        data = store.read(shard_key(record.shard), record.offset, record.size_bytes)
        return restored(record, data)
    try:
        got = store.get(task.key, task.etag)
    except (ObjectMissing, ConditionFailed, ObjectUnreadable) as error:
        return error
    if len(got.data) != task.size_bytes:
        return ConditionFailed(f"{task.key} is not as long as it was listed")
    return got
