"""The servers that are measured, by name, and which of them can run on this machine."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.juicefs import JuiceFS
from benchmarks.nginx import Nginx, SilentNginx
from benchmarks.node import Feedrack, OneWorker, TwoWorkers
from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import PeerMissingError, Server

PEERS: Mapping[str, type[Server]] = {
    peer.name: peer for peer in (Nginx, SilentNginx, Feedrack, SeaweedFS, JuiceFS)
}
WORKERS: Mapping[str, type[Server]] = {peer.name: peer for peer in (OneWorker, TwoWorkers)}


def available(
    kinds: Iterable[type[Server]], data: Path, folder: Path
) -> tuple[list[Server], dict[str, str]]:
    """Those that can run here, and why the others cannot, by name."""
    peers: list[Server] = []
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            peers.append(kind(data, folder / kind.name.replace(" ", "-")))
        except PeerMissingError as error:
            missing[kind.name] = str(error)
    return peers, missing


def notes(peers: Iterable[Server], missing: Mapping[str, str]) -> list[str]:
    """A line on each server: what it is, or why it is not there."""
    lines = [f"{peer.name}: {peer.note}" for peer in peers]
    lines += [
        f"{peer.name} is left out of PUT: {peer.put_missing}" for peer in peers if peer.put_missing
    ]
    return [*lines, *[f"{name} is left out: {reason}" for name, reason in missing.items()]]
