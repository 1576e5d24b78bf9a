"""How long a client may keep a connection waiting. Pure: times are handed in.

One look every now and then stands in for timers, so that a request costs none.
"""

from typing import Literal

from gateway.config import LimitsConfig

Verdict = Literal["write timeout", "header timeout", "idle timeout"]


class Patience:
    """One connection's times. `now` is the loop's time, in seconds.

    `head_since`: since when the rest of a request's head is being waited for; None where none is.
    `active`: whether anything was answered since the last look.
    """

    __slots__ = ("_idle_since", "_limits", "_untaken", "_untaken_since", "active", "head_since")

    def __init__(self, limits: LimitsConfig, now: float) -> None:
        self._limits = limits
        self.head_since: float | None = now
        self.active = False
        self._idle_since = now
        # How much the client has not taken, and since when it has been that much.
        self._untaken = (0, 0)
        self._untaken_since = now

    def awaits_head(self, now: float) -> None:
        """The beginning of a head has come."""
        if self.head_since is None:
            self.head_since = now

    def judge(
        self, now: float, *, untaken_bytes: int, sent_bytes: int, sending: bool, idle: bool
    ) -> Verdict | None:
        """What the client has overstayed, if anything.

        `untaken_bytes` wait in memory; `sent_bytes` have gone out of files so far, and with
        `sending` more are to go. `idle`: a request is being waited for.
        """
        untaken = (untaken_bytes, sent_bytes)
        if untaken != self._untaken or not (untaken_bytes or sending):
            self._untaken = untaken
            self._untaken_since = now
        elif 0 < self._limits.write_timeout_seconds < now - self._untaken_since:
            return "write timeout"
        if not idle or self.active or untaken_bytes:
            self.active = False
            self._idle_since = now
            if not idle:
                return None
        if self.head_since is not None:
            late = 0 < self._limits.header_timeout_seconds < now - self.head_since
            return "header timeout" if late else None
        late = 0 < self._limits.idle_timeout_seconds < now - self._idle_since
        return "idle timeout" if late else None
