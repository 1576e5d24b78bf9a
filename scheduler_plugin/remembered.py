"""Which datasets jobs have named of late, kept over a restart: those that nothing is counted under,
and those that were named together, are ranked because of it."""

import contextlib
import secrets
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from scheduler_plugin.dataset import BadHint, Dataset, parse_hint

# The ones named last; each costs a question to the gateways at every ranking.
MOST_REMEMBERED = 2000

_decode = msgspec.json.Decoder(dict[str, float]).decode


class Remembered:
    """Hints, by when they were last seen (seconds since 1970), the latest last."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._seen: dict[tuple[Dataset, ...], float] = {}
        # Whoever named it last; of those that an earlier daemon saw nobody knows.
        self._users: dict[tuple[Dataset, ...], str] = {}
        self._saved: frozenset[tuple[Dataset, ...]] = frozenset()

    def load(self) -> None:
        """What an earlier daemon saved; nothing where that cannot be read, since it only saves the
        first job of each dataset from not being placed."""
        try:
            raw = _decode(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return
        for text, seen in raw.items():
            with contextlib.suppress(BadHint):
                self._seen[parse_hint(text)] = seen
        self._saved = frozenset(self._seen)

    def see(self, named: Iterable[tuple[str, tuple[Dataset, ...]]], now: float) -> None:
        """Takes note of hints that jobs have now, each with whose job it is."""
        for user, hint in named:
            self._seen.pop(hint, None)
            self._seen[hint] = now
            self._users[hint] = user
        for hint in [each for each, seen in self._seen.items() if now - seen > self._seconds]:
            self._forget(hint)
        if len(self._seen) > MOST_REMEMBERED:
            self._shorten()

    def _shorten(self) -> None:
        """Whoever has named most loses the oldest: nobody's jobs drive out those of others."""
        by_user: dict[str, deque[tuple[Dataset, ...]]] = {}
        for hint in self._seen:
            by_user.setdefault(self._users.get(hint, ""), deque()).append(hint)
        for _ in range(len(self._seen) - MOST_REMEMBERED):
            self._forget(max(by_user.values(), key=len).popleft())

    def _forget(self, hint: tuple[Dataset, ...]) -> None:
        del self._seen[hint]
        self._users.pop(hint, None)

    def all(self) -> list[tuple[Dataset, ...]]:
        """The latest first."""
        return list(reversed(self._seen))

    def save(self) -> None:
        """Puts them down where they have changed. OSError."""
        names = frozenset(self._seen)
        if names == self._saved:
            return
        texts = {",".join(each.text for each in hint): seen for hint, seen in self._seen.items()}
        raw = msgspec.json.encode({text: seen for text, seen in texts.items() if _is_text(text)})
        temporary = self._path.with_name(f".{self._path.name}-{secrets.token_hex(8)}")
        try:
            temporary.write_bytes(raw)
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._saved = names


def _is_text(text: str) -> bool:
    """Names that are not UTF-8 are remembered until the daemon ends."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
