"""Who may change what now, among the threads of one process.

A write of one key holds that key's lock from looking at the old object to naming the new one,
which makes conditional writes atomic. Whoever holds the lock of a key may take that of a shorter
key it begins with (to turn a file into a folder), never the other way round, so no two wait for
each other. Processes on other hosts are not held up: over one NAS the last rename wins.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Condition


class Locks:
    """Exclusive locks by name, and a gate by name that many may pass until one closes it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._held: set[Hashable] = set()
        self._inside: Counter[str] = Counter()
        self._closed: set[str] = set()

    @contextmanager
    def hold(self, name: Hashable) -> Iterator[None]:
        """Waits until nobody else holds `name`. Not reentrant."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._held)
            self._held.add(name)
        try:
            yield
        finally:
            self._release(name)

    @contextmanager
    def try_hold(self, name: Hashable) -> Iterator[bool]:
        """Holds `name` if nobody else does, and says whether it did."""
        with self._changed:
            mine = name not in self._held
            self._held.add(name)
        try:
            yield mine
        finally:
            if mine:
                self._release(name)

    @contextmanager
    def share(self, bucket: str) -> Iterator[None]:
        """Passes the bucket's gate; what is within goes on while the bucket exists."""
        with self._changed:
            self._changed.wait_for(lambda: bucket not in self._closed)
            self._inside[bucket] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[bucket] -= 1
                if not self._inside[bucket]:
                    del self._inside[bucket]
                self._changed.notify_all()

    @contextmanager
    def close(self, bucket: str) -> Iterator[None]:
        """Closes the bucket's gate, waits until those within have left, and has it alone."""
        with self._changed:
            self._changed.wait_for(lambda: bucket not in self._closed)
            self._closed.add(bucket)
            self._changed.wait_for(lambda: bucket not in self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed.remove(bucket)
                self._changed.notify_all()

    def _release(self, name: Hashable) -> None:
        with self._changed:
            self._held.remove(name)
            self._changed.notify_all()
