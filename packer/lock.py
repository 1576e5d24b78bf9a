"""Two packers on one prefix exclude each other, by a lock that lies beside the packs.

It is a lease: who stops renewing it loses it. See docs/pack-format.md, "Lock".
"""

import os
import secrets
import socket
import threading
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from packer.stores.protocol import (
    ConditionFailed,
    Deletion,
    ObjectMissing,
    Store,
    StoreError,
)

LEASE_SECONDS = 120.0
RENEWAL_SECONDS = 20.0


class Locked(Exception):  # noqa: N818 - a state, met by whoever comes second
    """Another packer is at work on the prefix."""


class LockLost(Exception):  # noqa: N818
    """The lock could not be kept: another packer may be at work."""


class Holder(Struct, frozen=True):
    """Who holds a lock; the last four say which process, as far as another can tell."""

    id: str
    turn: int
    lease_seconds: float
    host: str
    boot: str
    namespace: str
    pid: int
    started: str


def this_process(turn: int = 0, id_: str = "") -> Holder:
    """This process as a holder."""
    return Holder(
        id_ or secrets.token_hex(8),
        turn,
        LEASE_SECONDS,
        socket.gethostname(),
        _first_line("/proc/sys/kernel/random/boot_id"),
        _link("/proc/self/ns/pid"),
        os.getpid(),
        _started(os.getpid()),
    )


def is_dead(holder: Holder) -> bool:
    """Whether the holder is known to be dead: a process that this one would see, and does not."""
    here = this_process()
    if not here.boot or (holder.boot, holder.namespace) != (here.boot, here.namespace):
        return False
    return _started(holder.pid) != holder.started


class PackLock:
    """The lock of a place, as a context. Locked at entry; LockLost from `check` later.

    A thread renews it. StoreError where the endpoint does not keep conditions."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._holder = this_process()
        self._etag = ""
        self._end = threading.Event()
        self._lost: Exception | None = None
        self._renewed_seconds = 0.0
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def check(self) -> None:
        """LockLost unless the lock is ours for long enough to finish a step."""
        if self._lost is not None:
            raise LockLost(f"the lock {self._key} is lost") from self._lost
        if self._store.seconds() - self._renewed_seconds > LEASE_SECONDS / 2:
            raise LockLost(f"the lock {self._key} was not renewed in time")

    def __enter__(self) -> "PackLock":
        self._take()
        try:
            self._store.put(self._key, b"{}", if_absent=True)
        except ConditionFailed:
            pass
        else:
            self._store.delete([Deletion(self._key)])
            raise StoreError("the endpoint ignores If-None-Match: two packers could not be told")
        self._renewed_seconds = self._store.seconds()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._lost is None:
            self._store.delete([Deletion(self._key)])

    def _take(self) -> None:
        body = msgspec.json.encode(self._holder)
        for _ in range(5):
            try:
                self._etag = self._store.put(self._key, body, if_absent=True)
            except ConditionFailed:
                if self._take_over(body):
                    return
            else:
                return
        raise Locked(f"others take and leave the lock {self._key}")

    def _take_over(self, body: bytes) -> bool:
        """Whether the lock that is there was ours for the taking; False: look again."""
        try:
            got = self._store.get(self._key)
            known = self._store.head(self._key)
        except ObjectMissing:
            return False
        try:
            holder = msgspec.json.decode(got.data, type=Holder)
        except msgspec.MsgspecError:
            holder = None
        if holder is not None and holder.id == self._holder.id:
            # Our own write, whose answer was lost.
            self._etag = got.etag
            return True
        lease = holder.lease_seconds if holder is not None else LEASE_SECONDS
        left = known.modified_ms / 1000 + lease - self._store.seconds()
        if left > 0 and (holder is None or not is_dead(holder)):
            who = f"{holder.host}, process {holder.pid}" if holder is not None else "another"
            raise Locked(f"{who} packs here; its lock runs out in {left:.0f} s unless renewed")
        try:
            self._etag = self._store.put(self._key, body, if_match=got.etag)
        except (ConditionFailed, ObjectMissing):
            return False
        return True

    def _renew(self) -> None:
        turn = 0
        while not self._end.wait(RENEWAL_SECONDS):
            turn += 1
            body = msgspec.json.encode(this_process(turn, self._holder.id))
            try:
                self._etag = self._store.put(self._key, body, if_match=self._etag)
                self._renewed_seconds = self._store.seconds()
            except (ConditionFailed, ObjectMissing) as error:
                if not self._is_ours(turn):
                    self._lost = error
                    return
            except (StoreError, OSError):
                # The endpoint is in trouble; `check` says when that has lasted too long.
                continue

    def _is_ours(self, turn: int) -> bool:
        """Whether a renewal that seemed refused was ours, its first answer lost."""
        try:
            got = self._store.get(self._key)
            holder = msgspec.json.decode(got.data, type=Holder)
        except (StoreError, OSError, msgspec.MsgspecError):
            return False
        if (holder.id, holder.turn) != (self._holder.id, turn):
            return False
        self._etag = got.etag
        self._renewed_seconds = self._store.seconds()
        return True


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; "" where there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
