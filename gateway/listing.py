"""This node's part of the directory, put together: what its disk holds is counted, told in Redis,
compared, and asked of others.

Part of the composition root; `app.py` builds it where there is a `[cluster]`.
"""

from gateway.cluster.directory import Directory
from gateway.cluster.holdings import Holdings
from gateway.cluster.members import Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.cluster.reconcile import Reconciliation
from gateway.cluster.recount import Recount
from gateway.index.cluster import Link
from gateway.telemetry.metrics import Metrics


class Listing:
    """`observer` is for the disk, from its start on; `start` once the link is up, `stop` before it
    goes down."""

    def __init__(self, link: Link, members: Members, metrics: Metrics) -> None:
        def tell(what: str, ratio: float) -> None:
            metrics.rebuilding_ratio.labels(what).set(ratio)

        self.rebuilding = Rebuilding(tell)
        self.holdings = Holdings()
        self.directory = Directory(link, members, self.holdings)
        self.reconciliation = Reconciliation(
            link, members, self.holdings, self.directory, self.rebuilding
        )
        self.observer = Recount(self.holdings, self.rebuilding, self.reconciliation.want)

    def start(self) -> None:
        self.directory.start()
        self.reconciliation.start()

    async def stop(self) -> None:
        await self.observer.close()
        await self.reconciliation.close()
        await self.directory.close()
