"""What workers do in the tests of processes: module functions, so that spawn can find them."""

from collections.abc import Sequence
from multiprocessing.connection import Connection

from feedrack import Dataset


def read_share(dataset: Dataset, positions: Sequence[int], answer: Connection) -> None:
    """Reads positions in batches and singly; sends what it found, or what went wrong."""
    try:
        found: object = dataset.read_batch(positions) + [dataset[index] for index in positions]
    except Exception as error:
        found = error
    answer.send(found)
    answer.close()
