"""This process's devices, and what a fork leaves of them.

A device belongs to the process that opened it. A child must neither use its parent's nor end it:
what it would end are the parent's queue pairs and registrations, since the kernel takes both for
one. So the child keeps everything of its parent's devices for ever, untouched.
"""

import ctypes
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from feedrack.errors import MemoryLost
from gateway.rdma import verbs
from gateway.rdma.device import (
    Device,
    Pair,
    RdmaUnavailable,
    Registration,
    VerbFailed,
    end_pair,
)
from gateway.rdma.wire import FallbackReason, PairAddress

log = logging.getLogger("feedrack.rdma")

# A port may come up later. A library that is not installed will not be.
_AGAIN_SECONDS = 300.0
# Nothing is posted on this side; the gateway does all the work.
_DEPTH = 1


class NoRdma(Exception):  # noqa: N818 - said of a request, which then goes over HTTP
    """A request's payload cannot move by RDMA, for one of the reasons of docs/rdma.md."""

    def __init__(self, reason: FallbackReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Cause(NamedTuple):
    """What is remembered of a NoRdma, to raise another. Never the exception itself: each raise adds
    to its traceback, which holds every frame it came through, and all that was in them."""

    reason: FallbackReason
    text: str


class Wanted(NamedTuple):
    """Which device: by name, port and index of the GID, or the first that will do."""

    device: str | None = None
    port: int | None = None
    gid_index: int | None = None


class Forked(Protocol):
    """Whoever is to hear that it lives in a child now."""

    def forked(self) -> None:
        """Begins anew: with locks that are free, and without connections and devices."""
        ...


class _Absence(NamedTuple):
    cause: Cause
    until: float


_absent: dict[Wanted, _Absence] = {}
_opened: "weakref.WeakSet[Opened]" = weakref.WeakSet()
_forked: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def open_once(wanted: Wanted, now: Callable[[], float] = time.monotonic) -> "Opened":
    """Opens a device for one client. NoRdma, at once where it is known that there is none."""
    absence = _absent.get(wanted)
    if absence is not None and now() < absence.until:
        raise NoRdma(*absence.cause)
    try:
        return Opened(verbs.open_device(*wanted))
    except RdmaUnavailable as error:
        cause = Cause("no-verbs" if error.verbs else "no-device", str(error))
        until = float("inf") if error.verbs else now() + _AGAIN_SECONDS
        _absent[wanted] = _Absence(cause, until)
        raise NoRdma(*cause) from error


def tell_of_forks(one: Forked) -> None:
    """Has `one.forked` called in every child from now on, for as long as it lives."""
    _forked.add(one)


class Opened:
    """A device that one client has open, and what was registered with it. For any thread.

    Once it is closed, and in a child, it refuses with VerbFailed: what libibverbs is asked of a
    closed device is the end of the process."""

    def __init__(self, device: Device) -> None:
        self.process = os.getpid()
        self.name = device.name
        self._device = device
        self._pairs: set[Pair] = set()
        self._registrations: set[Registration] = set()
        self._users = _Users()
        _opened.add(self)
        # What was never closed goes before the interpreter does, in the order that devices want.
        self._finalizer = weakref.finalize(
            self, _end, self._users, device, self._registrations, self._pairs
        )

    def register(self, make: Callable[[Device], Registration]) -> Registration:
        """Has memory registered that the peer may read and write. VerbFailed."""
        # Takes long, and is what several threads may do at once.
        with self._users.one_more():
            made = make(self._device)
            self._registrations.add(made)
            return made

    def unregister(self, made: Registration) -> None:
        """Ends a registration, in the process that made it. Safe to call twice. MemoryLost."""
        if self.process != os.getpid():
            return
        try:
            with self._users.one_more():
                try:
                    # Of several threads one takes it out.
                    self._registrations.remove(made)
                except KeyError:
                    return
                try:
                    made.close()
                except VerbFailed as error:
                    raise MemoryLost(f"memory stays registered: {error}") from error
        except _Over:
            # It ended with the device.
            return

    def pair(self) -> Pair:
        """A queue pair whose peer may read and write what is registered. VerbFailed."""
        with self._users.alone():
            pair = self._device.pair(depth=_DEPTH, remote=True)
            self._pairs.add(pair)
            return pair

    def connect(self, pair: Pair, peer: PairAddress) -> None:
        """As `Pair.connect`."""
        with self._users.alone():
            if pair not in self._pairs:
                raise VerbFailed("the queue pair was ended")
            pair.connect(peer)

    def fence(self, pair: Pair) -> None:
        """Ends a queue pair: once this returns, its peer neither reads nor writes any memory here.

        Safe to call twice. MemoryLost."""
        # Before any lock: a child's may be held for ever, by a thread that its parent alone has.
        if self.process != os.getpid():
            return
        try:
            with self._users.alone():
                if pair not in self._pairs:
                    return
                try:
                    end_pair(pair)
                except VerbFailed as error:
                    raise MemoryLost(f"a queue pair cannot be ended: {error}") from error
                self._pairs.discard(pair)
        except _Over:
            # Whoever closed the device ended it, and we waited for them.
            return

    def close(self) -> None:
        """Ends the device with all that was registered, in the process that opened it. Waits for
        those who are at it. Safe to call twice. MemoryLost."""
        if self.process == os.getpid():
            # A second thread that closes it waits for the first.
            with self._users.all_out:
                self._finalizer()

    def leave_to_parent(self) -> None:
        """Keeps all of it from ever being ended by this process, a child."""
        keep_for_ever(self)


class _Over(VerbFailed):
    """The device was closed, or is a parent's."""


class _Users:
    """Those who are at a device, which must not be closed under them: many who register, beside
    them one with the queue pairs, and at the end nobody but who closes it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Held by who is at the queue pairs, or closes. Taken before `_changed`. A finalizer may
        # run wherever the thread is that holds it.
        self.all_out = threading.RLock()
        self._changed = threading.Condition()
        self._registering = 0
        self._over = False

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """The device does not end before the `with` does. VerbFailed once it has."""
        self._check_process()
        with self._changed:
            if self._over:
                raise _Over("the device was closed")
            self._registering += 1
        try:
            yield
        finally:
            # A child's lock may be held for ever.
            if self.process == os.getpid():
                with self._changed:
                    self._registering -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As `one_more`, with nobody else at the queue pairs."""
        self._check_process()
        with self.all_out:
            if self._over:
                raise _Over("the device was closed")
            yield

    @contextmanager
    def none(self) -> Iterator[None]:
        """Nobody else is at the device, now and from now on."""
        with self.all_out:
            with self._changed:
                self._over = True
                while self._registering:
                    self._changed.wait()
            yield

    def _check_process(self) -> None:
        if self.process != os.getpid():
            raise _Over("the device is the parent's")


def keep_for_ever(thing: object) -> None:
    """Has it outlive the interpreter, in a child that must not end what is its parent's."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _end(users: _Users, device: Device, registrations: set[Registration], pairs: set[Pair]) -> None:
    if users.process == os.getpid():
        lost: VerbFailed | None = None
        with users.none():
            while pairs:
                try:
                    end_pair(pairs.pop())
                except VerbFailed as error:
                    lost = error
            # With no queue pair left nothing is written to, whatever stays registered.
            left: list[Registration | Device] = [*registrations, device]
            for each in left:
                try:
                    each.close()
                except VerbFailed as error:
                    log.warning("not closed as it should be: %s", error)
            registrations.clear()
        if lost is not None:
            raise MemoryLost(f"a queue pair cannot be ended: {lost}") from lost


def _in_child() -> None:
    for opened in list(_opened):
        opened.leave_to_parent()
    for one in list(_forked):
        one.forked()


os.register_at_fork(after_in_child=_in_child)
