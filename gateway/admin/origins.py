"""Whether the origins answer: asked when somebody wants to know, and not more often than useful."""

import asyncio
from collections.abc import Callable, Mapping

from gateway.errors import S3Error, TierUnavailable
from gateway.tiers.protocol import Origin

_EVERY_SECONDS = 5.0
_PATIENCE_SECONDS = 2.0


class OriginWatch:
    """Looks at every origin, at most every five seconds, for at most two. `now` is monotonic."""

    def __init__(self, origins: Mapping[str, Origin], *, now: Callable[[], float]) -> None:
        self._origins = origins
        self._now = now
        self._turn = asyncio.Lock()
        self._looked_at = -_EVERY_SECONDS
        self._found: dict[str, bool] = {}

    async def look(self) -> dict[str, bool]:
        """Origin names to whether they answer. A refusal is an answer."""
        async with self._turn:
            if self._now() - self._looked_at >= _EVERY_SECONDS:
                answers = await asyncio.gather(*map(_answers, self._origins.values()))
                self._found = dict(zip(self._origins, answers, strict=True))
                self._looked_at = self._now()
            return self._found


async def _answers(origin: Origin) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await origin.list_buckets()
    except S3Error:
        return True
    except (TierUnavailable, TimeoutError):
        return False
    return True
