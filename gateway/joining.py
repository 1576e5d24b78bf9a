"""What makes a node one of several: its link to Redis, its membership, and what both need of it.

Part of the composition root; `app.py` builds it where there is a `[cluster]`.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from gateway.cluster.members import Member, Members
from gateway.cluster.membership import Membership
from gateway.cluster.session import DOUBT_SECONDS, Mark
from gateway.cluster.writing import SharedChanges
from gateway.config import ClusterConfig, Config, ConfigError
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link
from gateway.store.coherence import Coherence, RemembersPacks
from gateway.store.versions import VersionTable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier

_FILE = "cluster.json"
_NOTE_SECONDS = 5.0

log = structlog.get_logger()


class Noted(Struct, frozen=True):
    """What a folder keeps over restarts: a name of its own, and how far its node has followed."""

    folder: str
    mark: Mark | None = None


class Joining:
    """The cluster's part of a node: `attach`, `start`, `stop`, in this order."""

    def __init__(self, config: Config, cluster: ClusterConfig, metrics: Metrics) -> None:
        self._config = config
        self._cluster = cluster
        self._metrics = metrics
        self._path = config.cache.path / _FILE
        # Empty while the folder is not this process's own.
        self._folder = ""
        self._noting: asyncio.Task[None] | None = None
        self.members = Members(config.node.id)
        self.link = Link(cluster.redis_url, cluster.name, count=metrics.redis_commands.inc)
        self.membership: Membership | None = None

    def trusted_until(self) -> float:
        """As `Membership.trusted_until`, from the first moment on."""
        return self.membership.trusted_until() if self.membership is not None else 0.0

    def attach(
        self,
        versions: VersionTable,
        disk: DiskTier,
        packs: Mapping[str, RemembersPacks],
        *,
        immutable: Collection[tuple[str, str]],
        on_trust: Callable[[float], None],
        tell: Callable[[], bytes],
    ) -> SharedChanges:
        """Makes all of a node that remembers something hear of other nodes' writes; what to tell of
        its own."""

        def later(seconds: float, call: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_later(seconds, call)

        memory = Coherence(
            versions, disk, packs, immutable=immutable, doubt_seconds=DOUBT_SECONDS, later=later
        )
        membership = self.membership = Membership(
            self.link, self._cluster, self.members, memory, on_trust=on_trust, tell=tell
        )
        return SharedChanges(
            self.link, self._cluster, membership, took=self._metrics.change_seconds.observe
        )

    async def start(self, *, peers: str, s3: str, admin: str, owns_folder: bool) -> None:
        """Joins. Claimed: another node of this id is alive."""
        membership = self._membership()
        noted = await asyncio.to_thread(_read, self._path) if owns_folder else None
        if owns_folder:
            known = noted.folder if noted is not None else ""
            self._folder = known or secrets.token_hex(8)
        try:
            await self.link.start()
        except ValueError as error:
            raise ConfigError(f"cluster.redis_url: {error}") from error
        node = self._config.node
        member = Member(
            id=node.id,
            incarnation="",
            rack=node.rack,
            zone=node.zone,
            peers=peers,
            s3=s3,
            admin=admin,
            capacity_bytes=int(self._config.cache.capacity),
            version=version("feedrack"),
            shape=(int(self._config.cache.chunk_size), int(self._config.cache.small_object_limit)),
        )
        await membership.start(
            member,
            folder_token=self._folder,
            mark=noted.mark if noted is not None else None,
        )
        self._noting = asyncio.create_task(self._note())

    async def announce_leave(self) -> None:
        """Tells the others that this node is about to leave: nothing has its home here any more.
        CoordinatorUnavailable."""
        await self._membership().update(state="draining")

    async def stop(self) -> None:
        """Leaves. The node remembers nothing for others' writes any more, and serves nobody."""
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.gather(self._noting, return_exceptions=True)
        await self._membership().close()
        await self._write_note()
        await self.link.close()

    async def told(self) -> dict[str, bytes]:
        """What each member last told of itself; nothing while Redis does not answer."""
        try:
            return await self._membership().told()
        except CoordinatorUnavailable:
            return {}

    def refresh(self) -> None:
        """Brings the gauges up to now."""
        membership = self._membership()
        left = membership.trusted_until() - membership.now()
        self._metrics.lease_seconds.set(max(0.0, left))
        self._metrics.changes_in_flight.set(len(membership.following.picture.open))
        self._metrics.members.set(len(self.members.all()))

    def _membership(self) -> Membership:
        assert self.membership is not None  # noqa: S101 - set by `attach`
        return self.membership

    async def _note(self) -> None:
        while True:
            await self._write_note()
            await asyncio.sleep(_NOTE_SECONDS)

    async def _write_note(self) -> None:
        if not self._folder:
            return
        noted = Noted(self._folder, self._membership().mark)
        try:
            await asyncio.to_thread(_write, self._path, msgspec.json.encode(noted))
        except OSError as error:
            # An older mark only means more to look through.
            log.debug("how far the changes were followed is not noted", reason=str(error))


def _read(path: Path) -> Noted | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Noted)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, raw: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(raw)
    beside.replace(path)
