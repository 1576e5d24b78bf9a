"""Where other nodes find this one."""

import socket

from gateway.config import Config, parse_listen

_ANYWHERE = frozenset(("0.0.0.0", "::"))  # noqa: S104 - not bound to, only recognised


def listen_of(config: Config) -> str:
    """What the peers' port listens on: as configured, or any free port of the S3 port's host."""
    assert config.cluster is not None  # noqa: S101 - a single node has no such port
    if config.cluster.listen is not None:
        return config.cluster.listen
    host, _ = parse_listen(config.s3.listen, "s3.listen")
    return f"{_bracketed(host)}:0"


def advertised(config: Config, port: int) -> str:
    """What `Member.peers` says, once the port is known: "host:port".

    As configured (a port of 0 there means the one that was bound); else the host that is listened
    on; where that is all of them, the address this host has towards others.
    """
    cluster = config.cluster
    assert cluster is not None  # noqa: S101 - a single node has no such port
    if cluster.advertise is not None:
        host, said = parse_listen(cluster.advertise, "cluster.advertise")
        return f"{_bracketed(host)}:{said or port}"
    host, _ = parse_listen(listen_of(config), "cluster.listen")
    if host in _ANYWHERE:
        host = _outward()
    return f"{_bracketed(host)}:{port}"


def _outward() -> str:
    """The address that packets to others leave from; none is sent."""
    for family, other in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((other, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
