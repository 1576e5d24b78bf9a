"""The process that `feedrack serve` is where a node has several workers: it binds, starts, watches,
replaces, and serves nothing itself.

It takes the signals; its children take orders. One thread around `select`; what to do is
`roster.py`'s to say.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from gateway.config import (
    Config,
    ConfigError,
    S3OriginConfig,
    admin_url,
    load,
    plain,
    read_secret,
    s3_url,
)
from gateway.processes.control import (
    Asked,
    ControlLost,
    Failed,
    Prepared,
    Ready,
    Start,
    SupervisorEnd,
)
from gateway.processes.roster import Action, Kill, Member, Roster, Spawn, Tell
from gateway.processes.run_folder import RunFolder
from gateway.s3 import census
from gateway.s3.doors import bind, port_of
from gateway.s3.tls import certificate
from gateway.store.shared_heads import make_memory
from gateway.telemetry import processes as metrics

log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
# At most so long until a child's death is noticed whose signal got lost.
_TICK_SECONDS = 1.0


class _Child:
    """A running process and the way to talk to it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", channel: SupervisorEnd, place: int
    ) -> None:
        self.process = process
        self.channel = channel
        self.place = place
        self.failure: Failed | None = None
        self.silent = False


class Supervisor:
    """Runs a node of several workers. `path` is the file that `config` came from, which a rolling
    restart reads again. OSError where an address is taken."""

    def __init__(self, path: Path, config: Config) -> None:
        self._path = path
        self._configs = {1: config}
        self._roster = Roster(
            workers=config.node.workers, drain_seconds=config.s3.limits.drain_timeout_seconds
        )
        self._children: dict[int, _Child] = {}
        # Processes that have ended and that the metrics could not be told of yet.
        self._unforgotten: set[int] = set()
        self._forgets_later = False
        self._selector = selectors.DefaultSelector()
        self._restarting = False
        self._status = 0
        self._listeners = bind(config.s3.listen, "s3.listen")
        try:
            self._admin = bind(config.admin.listen, "admin.listen")
        except OSError:
            _close(self._listeners)
            raise
        self._s3_url = s3_url(config, port_of(self._listeners))
        self._admin_url = admin_url(config, port_of(self._admin))

    def run(self) -> int:
        """Serves until SIGTERM, SIGINT or `POST /v1/drain`; the exit status."""
        self._folder = RunFolder()
        self._heads = make_memory()
        self._census = census.make_memory()
        self._counts = census.Census(self._census)
        self._tunnels = socket.socket(socket.AF_UNIX)
        try:
            self._tunnels.bind(str(self._folder.tunnels))
            self._tunnels.listen(socket.SOMAXCONN)
            with self._signals() as wake:
                self._selector.register(wake, selectors.EVENT_READ, None)
                self._loop(wake)
        finally:
            _close([*self._listeners, *self._admin, self._tunnels])
            self._counts.close()
            os.close(self._heads)
            os.close(self._census)
            self._selector.close()
            self._folder.remove()
        return self._status

    def _loop(self, wake: socket.socket) -> None:
        roster = self._roster
        while True:
            now = time.monotonic()
            while actions := roster.step(now):
                for action in actions:
                    self._act(action)
            if roster.over:
                log.info("stopped", node=self._config.node.id)
                return
            wait = min(_TICK_SECONDS, max(0.0, roster.wake_at(now) - now))
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._heed_signals(wake)
                else:
                    self._hear(key.data)
            self._reap()
            self._look_whether_settled()

    @property
    def _config(self) -> Config:
        return self._configs[self._roster.generation]

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        wake, write = socket.socketpair()
        wake.setblocking(False)
        write.setblocking(False)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        try:
            yield wake
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            wake.close()
            write.close()

    def _heed_signals(self, wake: socket.socket) -> None:
        with suppress(BlockingIOError):
            for number in wake.recv(4096):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._drain()
                elif number == signal.SIGHUP:
                    for child in self._children.values():
                        child.channel.order("reload")
                elif number == signal.SIGUSR2:
                    self._restart()

    def _drain(self) -> None:
        if self._roster.draining:
            return
        log.info("draining", node=self._config.node.id)
        self._roster.drain()
        # Workers close theirs when told to: only then does nobody listen any more.
        _close(self._listeners)

    def _restart(self) -> None:
        if self._roster.draining or not self._roster.up:
            return
        try:
            config = load(self._path)
            _check(config, self._config)
        except ConfigError as error:
            log.error("not restarted", reason=str(error))  # noqa: TRY400
            return
        self._roster.restart(
            workers=config.node.workers, drain_seconds=config.s3.limits.drain_timeout_seconds
        )
        self._configs[self._roster.generation] = config
        self._restarting = True
        log.info("restarting", node=config.node.id, workers=config.node.workers)

    # Children

    def _act(self, action: Action) -> None:
        if isinstance(action, Spawn):
            self._spawn(action)
            return
        child = self._children.get(action.number)
        if child is None:
            return
        if isinstance(action, Tell):
            child.channel.order(action.order)
        elif isinstance(action, Kill):
            member = self._roster.members[action.number]
            log.error("process killed", **_named(member), reason=action.reason)
            child.process.kill()

    def _spawn(self, spawn: Spawn) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._mourn_unborn(spawn.number, error)
            return
        taken = {child.place for child in self._children.values()}
        place = next(number for number in range(census.PLACES) if number not in taken)
        with theirs:
            try:
                self._selector.register(ours, selectors.EVENT_READ, spawn.number)
                process, start = self._start(spawn, place, theirs)
            except OSError as error:
                with suppress(KeyError):
                    self._selector.unregister(ours)
                ours.close()
                self._mourn_unborn(spawn.number, error)
                return
        # The system gives a process's number out again.
        self._unforgotten.discard(process.pid)
        channel = SupervisorEnd(ours)
        self._children[spawn.number] = _Child(process, channel, place)
        log.debug("process started", role=spawn.role, number=spawn.number, pid=process.pid)
        if not channel.start(start):
            process.kill()

    def _start(
        self, spawn: Spawn, place: int, channel: socket.socket
    ) -> tuple["subprocess.Popen[bytes]", Start]:
        """A child that waits for its first message, and that message."""
        keeper = spawn.role == "keeper"
        start = Start(
            role=spawn.role,
            number=spawn.number,
            generation=spawn.generation,
            config=plain(self._configs[spawn.generation]),
            folder=str(self._folder.path),
            s3_url=self._s3_url,
            heads=self._heads,
            census=self._census,
            place=place,
            listeners=[] if keeper else [each.fileno() for each in self._listeners],
            admin=[each.fileno() for each in self._admin] if keeper else [],
            tunnels=self._tunnels.fileno() if keeper else -1,
            stands_by=spawn.waits,
        )
        inherited = [*start.listeners, *start.admin, start.heads, start.census, self._folder.lock]
        if keeper:
            inherited.append(start.tunnels)
        command = [sys.executable, "-m", "gateway.processes", spawn.role, str(channel.fileno())]
        # A child must not die of a signal meant for the group before it can ignore it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, by its own path
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[channel.fileno(), *inherited],
                env={**os.environ, metrics.VARIABLE: str(self._folder.metrics)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process, start

    def _hear(self, number: int) -> None:
        child = self._children[number]
        try:
            messages = child.channel.receive()
        except ControlLost:
            # It is about to be found dead.
            self._hang_up(child)
            return
        for message in messages:
            match message:
                case Prepared():
                    self._roster.prepared(number)
                case Ready():
                    self._roster.ready(number, time.monotonic())
                    member = self._roster.members[number]
                    log.info("process serves", **_named(member), pid=child.process.pid)
                case Failed():
                    child.failure = message
                case Asked(what="drain"):
                    self._drain()
                case Asked():
                    self._restart()

    def _hang_up(self, child: _Child) -> None:
        if not child.silent:
            child.silent = True
            self._selector.unregister(child.channel)

    def _reap(self) -> None:
        for number, child in list(self._children.items()):
            status = child.process.poll()
            if status is None:
                continue
            if not child.silent:
                # Its last words.
                self._hear(number)
            self._hang_up(child)
            child.channel.close()
            self._counts.strike(child.place)
            del self._children[number]
            self._unforgotten.add(child.process.pid)
            self._mourn(number, child.failure, status)
        self._forget()

    def _forget(self) -> None:
        """Takes those that have ended out of the metrics, now or when that is possible again."""
        for process_id in list(self._unforgotten):
            try:
                metrics.forget(process_id, self._folder.metrics)
            except OSError as error:
                if not self._forgets_later:
                    log.error("metrics of an ended process kept", reason=str(error))  # noqa: TRY400
                self._forgets_later = True
                return
            self._unforgotten.discard(process_id)
        self._forgets_later = False

    def _mourn_unborn(self, number: int, error: OSError) -> None:
        """No process can be started: for the roster that is one that died."""
        self._mourn(number, Failed(f"no process can be started: {error.strerror}", 1), 1)

    def _mourn(self, number: int, failure: Failed | None, status: int) -> None:
        member = self._roster.members[number]
        expected = not member.stays or self._roster.draining
        fell_back = self._roster.gone(number, time.monotonic())
        reason = failure.reason if failure is not None else _said(status)
        if expected and not status:
            log.info("process ended", **_named(member))
        elif self._roster.failed and not self._roster.draining:
            self._status = failure.status if failure is not None else 1
            sys.stderr.write(f"feedrack: {reason}\n")
            self._drain()
        else:
            log.error("process died", **_named(member), reason=reason)
        if fell_back:
            self._restarting = False
            log.error("not restarted", reason=f"a new {member.role} does not serve: {reason}")

    def _look_whether_settled(self) -> None:
        was_up = self._roster.up
        if not self._roster.seen_settled():
            return
        if not was_up:
            log.info(
                "serving",
                node=self._config.node.id,
                s3=self._s3_url,
                admin=self._admin_url,
                workers=self._config.node.workers,
            )
        elif self._restarting:
            self._restarting = False
            log.info("restarted", node=self._config.node.id)


def _check(config: Config, current: Config) -> None:
    """Refuses a configuration that the running node cannot take over. ConfigError."""
    for where, new, old in (
        ("s3.listen", config.s3.listen, current.s3.listen),
        ("admin.listen", config.admin.listen, current.admin.listen),
        ("cache.path", config.cache.path, current.cache.path),
    ):
        if new != old:
            raise ConfigError(f"{where}: cannot be changed by a rolling restart")
    for number, tenant in enumerate(config.tenants):
        read_secret(tenant.secret_key_file, f"tenants[{number}].secret_key_file")
    for name, origin in config.origins.items():
        if isinstance(origin, S3OriginConfig) and origin.secret_key_file is not None:
            read_secret(origin.secret_key_file, f"origins.{name}.secret_key_file")
    if config.admin.token_file is not None:
        read_secret(config.admin.token_file, "admin.token_file")
    certificate(config.s3)


def _named(member: Member) -> dict[str, object]:
    return {"role": member.role, "number": member.number, "generation": member.generation}


def _said(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
