"""Hands shards of packs to readers on this machine: open files over a Unix socket, and a page that
says for how long what they map may be believed (docs/reader.md).

* Who asks has been authenticated and authorised where the offer was made; the token in it is good
  once, for half a minute, and for the files of that offer.
* A shard is held against its SHA-256 before it is handed over for the first time. A file that is
  evicted afterwards loses its name and stays with whoever mapped it.
* The page is told of every record of the log in the call that takes it in, so before the write it
  tells of is answered. It holds for LEASE_SECONDS at a time, renewed while this process lives and
  knows as much as it needs to answer reads itself. So what an earlier process handed out is over
  LEASE_SECONDS after its end: until then no write under a pack is answered here (`settled`).
"""

import asyncio
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from feedrack.offer import Message, Offer, OfferedPack, OfferedShard, Wanted, own_clock
from feedrack.page import WrittenPage
from gateway.errors import FeedrackError
from gateway.model.objects import Span
from gateway.tiers.chunk_reading import ChunkReader
from gateway.tiers.disk import DiskTier
from gateway.tiers.packed.known import Pack
from gateway.tiers.packed.reading import PackedReading

LEASE_SECONDS = 1.0
_RENEW_SECONDS = 0.25
_TOKEN_SECONDS = 30.0
_MOST_TOKENS = 1024
# A page that nobody has asked about for so long is not renewed any more.
_UNASKED_SECONDS = 180.0
_SEND_SECONDS = 10.0
_MOST_CLIENTS = 64
_REQUEST_BYTES = 128 * 1024
_AHEAD = 0.75
# A pack of which more was written over should be packed again; to name all of it to each reader
# that asks would hold everybody up.
_MOST_OVERRIDDEN = 20_000
_MOST_VERIFIED = 65_536

log = structlog.get_logger()
_wanted = msgspec.json.Decoder(Wanted)


class _Leased:
    """A pack as one bucket sees it, and its page."""

    def __init__(
        self, pack: Pack, freshness_seconds: float | None, unsure: Callable[[], bool]
    ) -> None:
        self.pack = pack
        self._unsure = unsure
        self.freshness_seconds = freshness_seconds
        self.page = WrittenPage()
        self.name = secrets.token_hex(16)
        self.asked_at = 0.0
        pack.changed.append(self.tell)
        self.tell()

    def tell(self) -> None:
        """Tells readers what is in use now, before anybody else is told."""
        view = self.pack.view
        if self._unsure():
            # Another node writes under it, or has: what it wrote is not known here yet.
            self.page.believe(0)
        if view is None or not self.pack.takes_overrides:
            # Writes of its keys are not logged any more, so nothing would tell of them.
            self.page.tell(0, 0)
        else:
            self.page.tell(view.manifest.generation, view.overrides.through)

    def renew(self, now: float, trusted_until: float) -> None:
        """Lets readers believe for another while, where reads here would, and no longer."""
        pack = self.pack
        if pack.view is None or not pack.takes_overrides or now - self.asked_at > _UNASKED_SECONDS:
            return
        if self._unsure():
            pack.refresh()
            return
        until = min(now + LEASE_SECONDS, trusted_until)
        if self.freshness_seconds is not None:
            until = min(until, pack.confirmed_at + self.freshness_seconds)
            if now - pack.confirmed_at > self.freshness_seconds * _AHEAD:
                pack.refresh()
        if until > now:
            self.page.believe(int(until * 1e9))

    def close(self) -> None:
        with suppress(ValueError):
            self.pack.changed.remove(self.tell)
        self.page.close()


class _Grant(NamedTuple):
    """What a token is good for."""

    until: float
    packs: tuple[_Leased, ...]


class Handing:
    """The offers of one node, and its socket. `now` is CLOCK_MONOTONIC in seconds: readers in other
    processes look at the same clock. `trusted_until`: until when other nodes tell this one of what
    they write."""

    def __init__(
        self,
        node: str,
        disk: DiskTier,
        origins: Mapping[str, PackedReading],
        *,
        now: Callable[[], float] = time.monotonic,
        trusted_until: Callable[[], float] | None = None,
    ) -> None:
        self._trusted_until = trusted_until or (lambda: float("inf"))
        self._node = node
        self._disk = disk
        self._origins = origins
        self._now = now
        self._socket: socket.socket | None = None
        self._name = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._leased: dict[tuple[str, Pack], _Leased] = {}
        self._grants: dict[str, _Grant] = {}
        # Files that were held against their hash, and whether they were what they should be.
        self._verified: dict[tuple[str, int, int, int, int], bool] = {}
        self._begun_at: float | None = None

    async def start(self) -> None:
        """Opens the socket. Without one, nothing is offered."""
        self._begun_at = self._now()
        name = f"feedrack-{secrets.token_hex(16)}"
        try:
            listening = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            listening.bind("\0" + name)
            listening.listen(_MOST_CLIENTS)
        except OSError as error:
            log.warning("nothing is handed to readers", reason=str(error))
            return
        self._socket, self._name = listening, name
        self._run(self._accept(listening))
        self._run(self._renew())

    async def close(self) -> None:
        """Ends all that was handed out: nobody believes it any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for leased in self._leased.values():
            leased.close()
        self._leased.clear()
        if self._socket is not None:
            self._socket.close()

    async def settled(self) -> None:
        """Returns once nothing that an earlier process handed out is believed any more."""
        if self._begun_at is not None:
            left = self._begun_at + LEASE_SECONDS - self._now()
            if left > 0:
                await asyncio.sleep(left)

    def offer(
        self,
        bucket: str,
        origin: str,
        origin_bucket: str,
        prefix: str,
        freshness_seconds: float | None,
        may: Callable[[str], bool],
    ) -> Offer:
        """What a reader may be handed of the packs that share keys with `prefix`; `may`: whether it
        may read everything under a prefix."""
        now = self._now()
        leased = []
        if self._socket is not None and freshness_seconds != 0:
            leased = [
                self._lease(bucket, self._origins[origin], origin_bucket, pack, freshness_seconds)
                for pack in self._origins[origin].whole(origin_bucket, prefix)
                if may(pack.prefix)
            ]
        self._grants = {token: grant for token, grant in self._grants.items() if grant.until > now}
        token = ""
        if leased and len(self._grants) < _MOST_TOKENS:
            token = secrets.token_hex(32)
            self._grants[token] = _Grant(now + _TOKEN_SECONDS, tuple(leased))
        offered = []
        for each in leased:
            each.asked_at = now
            each.renew(now, self._trusted_until())
            described = self._described(each) if token else None
            if described is not None:
                offered.append(described)
        return Offer(self._node, self._name, os.getuid(), own_clock(), token, tuple(offered))

    def _lease(
        self,
        bucket: str,
        origin: PackedReading,
        origin_bucket: str,
        pack: Pack,
        freshness_seconds: float | None,
    ) -> _Leased:
        leased = self._leased.get((bucket, pack))
        if leased is None:
            leased = self._leased[bucket, pack] = _Leased(
                pack, freshness_seconds, lambda: origin.unsure(origin_bucket, pack)
            )
        return leased

    def _described(self, leased: _Leased) -> OfferedPack | None:
        view = leased.pack.view
        if view is None or view.manifest.index is None:
            return None
        if len(view.overrides) > _MOST_OVERRIDDEN:
            return None
        index = view.manifest.index
        return OfferedPack(
            leased.pack.prefix,
            view.manifest.generation,
            view.overrides.through,
            leased.name,
            OfferedShard(index.sha256, index.size_bytes, True),
            tuple(
                OfferedShard(span.version.etag, span.size_bytes, self._held(span))
                for span in view.shards
            ),
            tuple(view.overrides),
        )

    def _held(self, span: Span) -> bool:
        """Whether the shard has a file here; counts as a use of it, as readers' own do not."""
        reader = self._disk.open_now(span)
        if reader is None:
            return False
        reader.release()
        return isinstance(reader, ChunkReader)

    async def _renew(self) -> None:
        while True:
            now = self._now()
            for leased in self._leased.values():
                leased.renew(now, self._trusted_until())
            await asyncio.sleep(_RENEW_SECONDS)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                # No descriptor is left: readers go by batch meanwhile.
                log.warning("reader not let in", reason=str(error))
                await asyncio.sleep(_RENEW_SECONDS)
                continue
            # The two that always run, and the clients.
            if len(self._tasks) > _MOST_CLIENTS + 2:
                client.close()
                continue
            self._run(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        with closing(client):
            try:
                async with asyncio.timeout(_SEND_SECONDS) as limit:
                    raw = await asyncio.get_running_loop().sock_recv(client, _REQUEST_BYTES)
                    wanted = _wanted.decode(raw)
                    grant = self._grants.pop(wanted.token, None)
                    if grant is None or grant.until <= self._now():
                        return
                    for name in dict.fromkeys(wanted.names):
                        await self._hand_over(client, name, grant.packs)
                        limit.reschedule(asyncio.get_running_loop().time() + _SEND_SECONDS)
                    await _send(client, "", [])
            except (OSError, FeedrackError, msgspec.MsgspecError) as error:
                log.debug("reader not served", reason=str(error))

    async def _hand_over(self, client: socket.socket, name: str, packs: Sequence[_Leased]) -> None:
        for leased in packs:
            view = leased.pack.view
            if name == leased.name:
                await _send(client, name, [leased.page.descriptor])
                return
            if view is None or view.manifest.index is None:
                continue
            if name == view.manifest.index.sha256:
                opened = leased.pack.opened
                if opened is not None:
                    await self._send_file(client, name, os.open(opened.path, os.O_RDONLY))
                return
            for span in view.shards:
                if span.version.etag == name:
                    await self._send_file(client, name, await self._shard(span))
                    return

    async def _send_file(self, client: socket.socket, name: str, descriptor: int | None) -> None:
        if descriptor is None:
            return
        try:
            await _send(client, name, [descriptor])
        finally:
            os.close(descriptor)

    async def _shard(self, span: Span) -> int | None:
        """A descriptor of a shard that is here and whole; None where it is not."""
        reader = await self._disk.open(span)
        if reader is None:
            return None
        try:
            if not isinstance(reader, ChunkReader):
                # So small a shard that it has no file of its own.
                return None
            descriptor = reader.duplicate()
        finally:
            await reader.close()
        status = os.fstat(descriptor)
        sha256 = span.version.etag
        stamp = (sha256, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._verified.get(stamp):
            return descriptor
        if stamp in self._verified:
            os.close(descriptor)
            return None
        try:
            found = await asyncio.to_thread(_sha256, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if len(self._verified) >= _MOST_VERIFIED:
            self._verified.clear()
        self._verified[stamp] = found == sha256
        if found == sha256:
            return descriptor
        os.close(descriptor)
        log.error("a shard in the cache is not what its name says", shard=sha256)
        return None

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send(client: socket.socket, name: str, descriptors: Sequence[int]) -> None:
    """One message, once there is room for it. OSError."""
    loop = asyncio.get_running_loop()
    raw = msgspec.json.encode(Message(name))
    while True:
        with suppress(BlockingIOError):
            socket.send_fds(client, [raw], descriptors)
            return
        room = asyncio.Event()
        loop.add_writer(client, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(client)


def _sha256(descriptor: int) -> str:
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
