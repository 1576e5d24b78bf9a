"""Members that did not answer a moment ago. Pure: the clock is handed in.

Membership takes seconds to see that a node is gone. Until then nobody waits for it twice.
"""

from collections.abc import Callable

_SECONDS = 3.0


class Suspects:
    """Remembers failures for a few seconds; the place of a suspect is taken by the next best."""

    def __init__(self, *, now: Callable[[], float], seconds: float = _SECONDS) -> None:
        self._now = now
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def failed(self, id_: str) -> None:
        """A member did not answer as it should."""
        self._until[id_] = self._now() + self._seconds

    def __contains__(self, id_: object) -> bool:
        if not self._until:
            return False
        until = self._until.get(str(id_))
        if until is None:
            return False
        if until <= self._now():
            del self._until[str(id_)]
            return False
        return True
