"""`python -m gateway.processes ROLE FD`: a child of the supervisor, which alone starts it so."""

import asyncio
import os
import select
import signal
import socket
import sys
import threading
import time

from gateway.config import ConfigError, parse
from gateway.errors import FeedrackError
from gateway.processes.control import ChildEnd, ControlLost, Failed
from gateway.telemetry.logs import configure

# What a process may take longer to end than its requests, and those of the workers before it.
_GRACE_SECONDS = 60.0
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


def main() -> None:
    """Takes orders from the supervisor, and from nobody else."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control = ChildEnd(socket.socket(fileno=int(sys.argv[2])))
    try:
        start = control.receive_start()
    except ControlLost:
        sys.exit(1)
    config = parse(start.config)
    configure(config.log)
    seconds = 2 * config.s3.limits.drain_timeout_seconds + _GRACE_SECONDS
    threading.Thread(target=_outlast, args=(control.fileno(), seconds), daemon=True).start()
    try:
        if start.role == "keeper":
            from gateway.processes.keeper import run as run_keeper

            asyncio.run(run_keeper(config, start, control))
        else:
            from gateway.processes.worker import run as run_worker

            asyncio.run(run_worker(config, start, control))
    except (FeedrackError, OSError) as error:
        status = 2 if isinstance(error, ConfigError) else 1
        control.tell(Failed(str(error), status))
        sys.exit(status)


def _outlast(channel: int, seconds: float) -> None:
    """Ends a process that hangs, and whose supervisor is not there any more to do it."""
    poll = select.poll()
    poll.register(channel, 0)
    poll.poll()
    time.sleep(seconds)
    os._exit(1)


if __name__ == "__main__":
    main()
