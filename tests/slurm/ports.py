"""Ports that are one lab's own for as long as it lives, on a machine where several run."""

import contextlib
import os
import socket

PORTS = 100
# Below those that the kernel gives out by itself.
_FIRST, _BLOCKS = 20000, 120


def own_address() -> str:
    """The address that this host's name stands for: told to listen on one address alone,
    slurmctld takes that one."""
    try:
        return socket.gethostbyname(own_name())
    except socket.gaierror:
        return "127.0.0.1"


def own_name() -> str:
    """This host's name as Slurm shortens it."""
    return socket.gethostname().split(".")[0]


class OwnPorts:
    """`PORTS` ports from `first` on; `close` gives them back, and so does the process's end."""

    def __init__(self) -> None:
        self._claim = socket.socket(socket.AF_UNIX)
        for number in range(_BLOCKS):
            block = (os.getpid() + number) % _BLOCKS
            self.first = _FIRST + PORTS * block
            # An abstract name: the kernel gives it to one holder, and forgets it with that one.
            with contextlib.suppress(OSError):
                self._claim.bind(f"\0feedrack-slurm-{block}")
                if self._free():
                    return
                self._claim.close()
                self._claim = socket.socket(socket.AF_UNIX)
        self.close()
        raise RuntimeError("no ports are left for a Slurm")

    def close(self) -> None:
        self._claim.close()

    def _free(self) -> bool:
        """Whether no stranger listens on one of them."""
        for port in range(self.first, self.first + PORTS):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((own_address(), port))
                except OSError:
                    return False
        return True
