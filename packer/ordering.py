"""The order in which objects are laid out: that of their keys, shuffled, or that of a file."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packer.plan import Task
from packer.runs import Sorter, join

_LAST = b"\xff" * 8


def ordered(tasks: Iterable[Task], order: str, folder: Path) -> Iterator[Task]:
    """Tasks that come in key order, in the order asked for. OSError where its file can't be read.

    `shuffled:SEED` is the order of a hash of seed and key: the same for the same keys everywhere,
    and an object more or less moves no other. `file:PATH` has a key a line; the others follow.
    """
    kind, _, rest = order.partition(":")
    if kind == "lexical":
        return iter(tasks)
    sorter = Sorter(folder, "order", Task)
    if kind == "shuffled":
        for task in tasks:
            sorter.add(shuffle_key(rest, task.key), task)
    else:
        for position, task in _placed(tasks, Path(rest), folder):
            sorter.add(position, task)
    return (task for _, task in sorter)


def shuffle_key(seed: str, key: str) -> bytes:
    """Where a seed puts a key."""
    return hashlib.blake2b(key.encode(), digest_size=16, key=seed.encode()[:64]).digest()


def _placed(tasks: Iterable[Task], path: Path, folder: Path) -> Iterator[tuple[bytes, Task]]:
    lines: Sorter[int] = Sorter(folder, "lines", int)
    with path.open("rb") as file:
        for number, line in enumerate(file):
            key = line.rstrip(b"\r\n")
            if key:
                lines.add(key, number)
    keyed = ((task.key.encode(), task) for task in tasks)
    for _, (found, numbers) in join(keyed, lines):
        for task in found:
            yield numbers[0].to_bytes(8, "big") if numbers else _LAST, task
