"""Keys that other nodes are changing: what is known here of the log may be behind on them."""

from collections import Counter


class Elsewhere:
    """Counts the changes under way by bucket and key. They are few at a time, so that looking
    through them costs nothing."""

    def __init__(self) -> None:
        self._changing: dict[str, Counter[str]] = {}

    def begin(self, bucket: str, key: str) -> None:
        self._changing.setdefault(bucket, Counter())[key] += 1

    def end(self, bucket: str, key: str) -> None:
        keys = self._changing.get(bucket)
        if keys is None:
            return
        keys[key] -= 1
        if keys[key] <= 0:
            del keys[key]
            if not keys:
                del self._changing[bucket]

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """Those that begin with the prefix."""
        return [key for key in self._changing.get(bucket, ()) if key.startswith(prefix)]

    def under(self, bucket: str, prefix: str) -> bool:
        """Whether some key that begins with the prefix is being changed."""
        return any(key.startswith(prefix) for key in self._changing.get(bucket, ()))
