"""All servers, all rounds: who can run here is started, given its objects, and takes its turns."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct, field
from rich.console import Console

from benchmarks.driver import Driver
from benchmarks.measure import Samples
from benchmarks.nginx import SilentNginx
from benchmarks.node import OverS3
from benchmarks.peers import PEERS, WORKERS, available, notes
from benchmarks.plan import Plan
from benchmarks.rounds import Rounds, write_objects
from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import Server, ServerEndedError

SECTIONS = ("get", "put", "cold", "workers")
# In the tables servers stand in this order, whatever the order of the rounds was.
_ORDER = (*PEERS, *WORKERS, OverS3.name)


class Found(Struct, kw_only=True):
    """What a run brought.

    Samples, the servers' versions, why some are missing, a line on each, and wrong answers that
    no sample tells of.
    """

    samples: Samples
    versions: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class _Compared:
    """The servers that take part, and what a round asks of them."""

    def __init__(self, plan: Plan, folder: Path, sections: set[str], names: Sequence[str]) -> None:
        self._plan = plan
        self._sections = sections
        data = folder / "data"
        write_objects(plan, data)
        self.peers, self.missing = available((PEERS[name] for name in names), data, folder)
        self.workers: list[Server] = []
        if "workers" in sections:
            self.workers, lacking = available(WORKERS.values(), data, folder)
            self.missing |= lacking
        self._origin = next((peer for peer in self.peers if isinstance(peer, SeaweedFS)), None)
        self._node: OverS3 | None = None
        if self._origin is None:
            self.missing[OverS3.name] = "there is no S3 origin (seaweedfs)"
        elif "cold" in sections:
            self._node = OverS3(data, folder / "over-s3", self._origin.port)

    def start(self, stack: ExitStack, rounds: Rounds) -> None:
        """Starts all but the workers and the node over S3, which are started when they are due."""
        for peer in self.peers:
            stack.enter_context(peer)
            if not peer.serves_files:
                colds = [task.size for task in self._plan.colds if peer is self._origin]
                rounds.give_objects(peer, dict.fromkeys([*self._plan.sizes, *colds]))

    def round(self, rounds: Rounds) -> None:
        """One turn of every server at every task."""
        servers = rounds.begin(self.peers)
        if "get" in self._sections:
            rounds.fill(servers, self._plan.sizes)
            rounds.read(servers, self._plan.reads)
        if "put" in self._sections:
            rounds.upload(servers, self._plan.uploads)
        if self._origin is not None and self._node is not None:
            rounds.cold(self._origin, self._node, self._plan.colds)
        if len(self.workers) == len(WORKERS):
            rounds.two_cores(self.workers, self._plan.reads[0])


def compare(
    plan: Plan, folder: Path, sections: set[str], names: Sequence[str], console: Console
) -> Found:
    """All rounds. A server that ends too early ends them; what was measured until then is kept."""
    compared = _Compared(plan, folder, sections, names)
    with ExitStack() as stack:
        rounds = Rounds(plan, stack.enter_context(Driver()), console)
        compared.start(stack, rounds)
        try:
            for number in range(plan.rounds):
                console.print(f"round {number + 1} of {plan.rounds}")
                compared.round(rounds)
        except ServerEndedError as error:
            console.print(str(error), style="bold red", markup=False)
            rounds.wrong.append(" ".join(str(error).split())[:300])
    return Found(
        samples={
            cell: dict(sorted(by_server.items(), key=lambda item: _rank(item[0])))
            for cell, by_server in rounds.samples.items()
        },
        versions=[peer.version for peer in compared.peers if peer.name != SilentNginx.name],
        missing=compared.missing,
        notes=notes([*compared.peers, *compared.workers], compared.missing),
        wrong=rounds.wrong,
    )


def _rank(server: str) -> int:
    return _ORDER.index(server) if server in _ORDER else len(_ORDER)
