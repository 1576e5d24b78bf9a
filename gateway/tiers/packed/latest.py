"""What is asked of the origin again and again: once at a time, and dated by when it was asked."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.errors import FeedrackError, TierUnavailable
from packer.format import ManifestError, OverrideError

# After a question that failed, the next one for nobody in particular waits so long.
_PAUSE_SECONDS = 1.0

log = structlog.get_logger()


class Latest:
    """A question that is put again and again, once at a time. `at` is when the last question that
    was answered had been put. Where `ask` fails nothing was learned: TierUnavailable."""

    def __init__(self, ask: Callable[[], Awaitable[None]], now: Callable[[], float]) -> None:
        self._ask = ask
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._doubts = 0
        self._pause_until = float("-inf")
        self.at = float("-inf")

    async def since(self, moment: float) -> None:
        """Returns once a question put at `moment` or later has been answered."""
        while self.at < moment:
            await asyncio.shield(self._begin())

    def refresh(self) -> None:
        """Puts the question behind the answer that is being given. A failure is no news; nobody
        waits for the next one, so it is not put at once."""
        if self._now() >= self._pause_until:
            self._begin()

    def doubt(self) -> None:
        """Takes no question put until now for answered: something was just written there."""
        self.at = float("-inf")
        self._doubts += 1

    async def stop(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._over)
        return self._task

    async def _run(self) -> None:
        begun, doubts = self._now(), self._doubts
        try:
            await self._ask()
            if doubts == self._doubts:
                self.at = begun
        except TierUnavailable:
            raise
        except (FeedrackError, ManifestError, OverrideError) as error:
            # Whoever reads or writes an object asked for none of this: it is no answer to them.
            raise TierUnavailable(f"packs cannot be looked at: {error!r}") from error
        finally:
            # Not in a callback: who goes on waiting must find that it is over.
            self._task = None

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._pause_until = self._now() + _PAUSE_SECONDS
            log.debug("packs not looked at", reason=str(error))
