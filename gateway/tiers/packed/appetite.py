"""A cold packed object: fetch its bytes alone, or the whole shard it lies in? Pure.

A request costs about what a MiB costs to move, so a range of a small object is paid for by its
request, and a shard of 256 MiB by its bytes. Who knows nothing of what is asked next does best by
paying for ranges until they have cost a fair share of the whole, and then taking the whole (the
ski-rental problem; Karlin et al., "Competitive snoopy caching", 1988). Two things are known:

* a reader that begins at the beginning of a shard most likely reads on: an epoch in the order of
  the pack begins every shard there, and so costs one request a shard;
* what was asked long ago says little of now: what ranges have cost fades, by half in
  `_HALF_SECONDS`.

While a shard is on its way in, what comes soon is waited for; what lies further off is fetched by
itself, so that a reader at random does not wait for a whole shard.
"""

from collections import OrderedDict

# What a request costs, in bytes that could have been moved instead: 10 ms at 100 MB/s.
_REQUEST_BYTES = 1024**2
# The part of a shard's price that ranges may cost before the whole is taken.
_SHARE = 0.25
_HALF_SECONDS = 60.0
# So near to the beginning of a shard an object is among its first.
_BEGINNING_BYTES = 65_536
# What is this far behind the byte that is coming in now is here as soon as a request would be.
_SOON_BYTES = 16 * 1024**2
_MAX_SHARDS = 16_384


class Appetite:
    """Remembers by shard what its ranges have cost lately. `limit_bytes`: no larger shard is worth
    its room in the cache."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._paid: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wants_whole(
        self, shard: str, shard_bytes: int, offset: int, size_bytes: int, now: float
    ) -> bool:
        """Whether the read of `size_bytes` at `offset` should bring in all of the shard. A read by
        range is counted; `now` in seconds."""
        if shard_bytes > self._limit_bytes:
            return False
        if offset < _BEGINNING_BYTES:
            return True
        paid = self._faded(shard, now) + _REQUEST_BYTES + size_bytes
        if paid >= _SHARE * (shard_bytes + _REQUEST_BYTES):
            self._paid.pop(shard, None)
            return True
        self._paid[shard] = paid, now
        self._paid.move_to_end(shard)
        if len(self._paid) > _MAX_SHARDS:
            self._paid.popitem(last=False)
        return False

    def _faded(self, shard: str, now: float) -> float:
        paid, since = self._paid.get(shard, (0.0, now))
        return float(paid * 0.5 ** ((now - since) / _HALF_SECONDS))


def comes_soon(offset: int, received_bytes: int) -> bool:
    """Whether the byte at `offset` of a shard that comes in, and has come up to `received_bytes`,
    is worth waiting for."""
    return offset < received_bytes + _SOON_BYTES
