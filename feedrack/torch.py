"""Datasets for PyTorch. A DataLoader's batch is one request.

    MapDataset       any sampler; `__getitems__` reads a whole batch at once
    StreamDataset    a given order, split among ranks and workers, read ahead

Importing this module needs no PyTorch; making one of the two does (`pip install feedrack[torch]`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feedrack.dataset import Dataset
from feedrack.errors import WrongAddress
from feedrack.keys import Order, in_order
from feedrack.shares import Share, blocks

Transform = Callable[[str, bytes], Any]

if TYPE_CHECKING:

    class _Map: ...

    class _Stream: ...

    def _worker() -> tuple[int, int]: ...

    def _shared_number() -> Any: ...

else:
    try:
        import torch
        from torch.utils.data import Dataset as _Map
        from torch.utils.data import IterableDataset as _Stream
        from torch.utils.data import get_worker_info
    except ImportError as _error:
        _reason = _error

        class _Map:
            def __new__(cls, *_arguments: object, **_named: object) -> Any:
                raise ImportError(
                    "feedrack.torch needs PyTorch: pip install feedrack[torch]"
                ) from _reason

        _Stream = _Map

    def _worker() -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def _shared_number() -> Any:
        # Seen by workers that live on from one epoch to the next, and copied by a plain pickle.
        return torch.zeros(1, dtype=torch.int64).share_memory_()


class MapDataset(_Map):
    """A dataset by position, for any sampler. Samples are bytes, or what `transform(key, bytes)`
    makes of them."""

    def __init__(self, dataset: Dataset, transform: Transform | None = None) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._sample(index, self.dataset[int(index)])

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """The samples of a batch: what a DataLoader calls where it is there."""
        positions = [int(index) for index in indexes]
        objects = self.dataset.read_batch(positions)
        return [self._sample(*pair) for pair in zip(positions, objects, strict=True)]

    def _sample(self, index: int, data: bytes) -> Any:
        if self.transform is None:
            return data
        return self.transform(self.dataset.keys[index], data)


class StreamDataset(_Stream):
    """A dataset in an order, each rank and each worker of a DataLoader reading its own share.

    With `shuffled:SEED` each epoch (`set_epoch`) has another order. Blocks of `batch_size` go round
    the workers in turn, so that a DataLoader of that batch size gives the very order. `even`: every
    rank gets the same number of samples, at most `world_size - 1` left out in all, so that none
    waits for the others at the end of an epoch. Raises WrongAddress for a rank that is none."""

    def __init__(
        self,
        dataset: Dataset,
        transform: Transform | None = None,
        *,
        order: Order = "lexical",
        batch_size: int = 256,
        ahead: int = 2,
        rank: int = 0,
        world_size: int = 1,
        even: bool = True,
    ) -> None:
        if not 0 <= rank < world_size or batch_size < 1:
            raise WrongAddress(f"rank {rank} of {world_size}, batches of {batch_size}")
        self.dataset = dataset
        self.transform = transform
        self.order = order
        self.batch_size = batch_size
        self.ahead = ahead
        self._share = Share(rank, world_size, even)
        self._epoch = _shared_number()

    def __len__(self) -> int:
        count = len(self.dataset) if isinstance(self.order, str) else len(self.order)
        return len(self._share.of(range(count)))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that iterations from now on read, in workers too. 0 at first."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Any]:
        order, epoch = self.order, int(self._epoch[0])
        if isinstance(order, str) and order.startswith("shuffled:") and epoch:
            order = f"{order}/{epoch}"
        own = self._share.of(in_order(self.dataset.keys, order))
        keys, transform = self.dataset.keys, self.transform
        for batch, objects in self.dataset.read_ahead(
            blocks(own, self.batch_size, *_worker()), self.ahead
        ):
            if transform is None:
                yield from objects
            else:
                for index, data in zip(batch, objects, strict=True):
                    yield transform(keys[index], data)
