"""One packer a prefix: who holds the lock keeps it, who died or slept too long has lost it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from packer.lock import Holder, Locked, LockLost, PackLock, is_dead, this_process
from packer.stores.protocol import ConditionFailed, Store, StoreError
from tests.packer.conftest import Bucket

KEY = ".feedrack/packs/x/lock"


class Late:
    """A store whose clock is some seconds ahead of when things were written."""

    def __init__(self, store: Store, ahead_seconds: float) -> None:
        self._store = store
        self.ahead_seconds = ahead_seconds

    def seconds(self) -> float:
        return self._store.seconds() + self.ahead_seconds

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def elsewhere() -> Holder:
    """A packer of another machine, of which nobody here can tell whether it lives."""
    return msgspec.structs.replace(this_process(), boot="another", host="far")


def test_a_lock_is_there_while_it_is_held(bucket: Bucket) -> None:
    with PackLock(bucket.store, KEY) as lock:
        lock.check()
        assert KEY in bucket.keys(KEY)
        with pytest.raises(Locked), PackLock(bucket.store, KEY):
            pass
        lock.check()
    assert not bucket.keys(KEY)


def test_a_lock_of_another_machine_is_respected_until_it_has_run_out(bucket: Bucket) -> None:
    bucket.store.put(KEY, msgspec.json.encode(elsewhere()))
    with pytest.raises(Locked, match="far"), PackLock(bucket.store, KEY):
        pass
    late = Late(bucket.store, 100)
    with pytest.raises(Locked), PackLock(late, KEY):  # type: ignore[arg-type]
        pass
    late.ahead_seconds = 130
    with PackLock(late, KEY) as lock:  # type: ignore[arg-type]
        lock.check()


def test_of_two_that_take_over_one_wins(bucket: Bucket) -> None:
    bucket.store.put(KEY, msgspec.json.encode(elsewhere()))
    etag = bucket.store.head(KEY).etag
    bucket.store.put(KEY, b"first", if_match=etag)
    with pytest.raises(ConditionFailed):
        bucket.store.put(KEY, b"second", if_match=etag)


def test_a_lock_of_a_process_of_this_machine_that_died_is_taken_at_once(bucket: Bucket) -> None:
    script = (
        "import msgspec, sys; from packer.lock import this_process;"
        "sys.stdout.buffer.write(msgspec.json.encode(this_process()))"
    )
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert is_dead(msgspec.json.decode(dead.stdout, type=Holder))
    assert not is_dead(this_process())
    assert not is_dead(elsewhere())
    bucket.store.put(KEY, dead.stdout)
    with PackLock(bucket.store, KEY) as lock:
        lock.check()


def test_a_holder_whose_lock_was_taken_over_is_told(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.lock.RENEWAL_SECONDS", 0.01)
    with PackLock(bucket.store, KEY) as lock:
        while True:
            # The holder renews meanwhile: try again until a look and a write fall together.
            try:
                bucket.store.put(
                    KEY,
                    msgspec.json.encode(elsewhere()),
                    if_match=bucket.store.head(KEY).etag,
                )
                break
            except ConditionFailed:
                continue
        with pytest.raises(LockLost):
            until_lost(lock)
    # It is not ours to remove.
    assert bucket.keys(KEY)


def until_lost(lock: PackLock) -> None:
    while True:
        lock.check()


def test_a_lock_is_renewed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.lock.RENEWAL_SECONDS", 0.01)
    with PackLock(bucket.store, KEY) as lock:
        first = bucket.store.head(KEY).etag
        while bucket.store.head(KEY).etag == first:
            lock.check()


def test_a_holder_that_could_not_renew_in_time_is_told(bucket: Bucket) -> None:
    late = Late(bucket.store, 0)
    with PackLock(late, KEY) as lock:  # type: ignore[arg-type]
        late.ahead_seconds = 61
        with pytest.raises(LockLost, match="in time"):
            lock.check()


class Unconditional:
    """A store that ignores If-None-Match, as some services do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, data: bytes, **_: object) -> str:
        return self._store.put(key, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_an_endpoint_without_conditional_writes_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    store = Unconditional(bucket.store)
    with pytest.raises(StoreError, match="If-None-Match"), PackLock(store, KEY):  # type: ignore[arg-type]
        pass
