"""Redis, and the only import of it: commands, scripts and streams under one prefix.

One deployment, a Sentinel's or a Cluster's: all keys share one hash tag, so that scripts may touch
any of them. Nothing is retried here: who asks knows what asking twice would do. Every failure is
CoordinatorUnavailable; a script refuses by what it returns.

    redis://host:6379/0        rediss:// with TLS       unix:///path?db=0
    redis+sentinel://[user:password@]host1:26379,host2:26379/SERVICE[/DB]
    redis+cluster://host:7000  rediss+cluster://
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import redis.asyncio as aioredis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from gateway.errors import CoordinatorUnavailable

Word = str | bytes | int | float
Entry = tuple[bytes, dict[bytes, bytes]]

# Longer than Redis is ever away without being away; a command that took so long has failed.
_PATIENCE_SECONDS = 2.0
_CONNECT_SECONDS = 1.0


class Script:
    """Lua that Redis runs in one step. `KEYS` are given in full, as `Link.key` makes them."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Redis's own name for it, no signature.
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """Connections to Redis. `name` is the cluster's: what several share a Redis by. `count` hears
    how many commands are sent."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._tag = "{" + name + "}"
        self._patience_seconds = patience_seconds
        self._client: Any = None
        self._waiting: Any = None
        self._count = count

    def key(self, *parts: str) -> str:
        """A key of this cluster's."""
        return ":".join((self._tag, *parts))

    async def start(self) -> None:
        """Makes ready to connect; connections are made by need. ValueError: no such URL."""
        self._client = _client(self._url, self._patience_seconds)
        # Whoever waits for news holds a connection for as long.
        self._waiting = _client(self._url, self._patience_seconds + 60.0)

    async def close(self) -> None:
        clients, self._client, self._waiting = (self._client, self._waiting), None, None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def command(self, *words: Word) -> Any:
        """The answer to one command, as bytes, integers and lists."""
        async with _Failing(self._patience_seconds):
            self._count(1)
            return await self._started(self._client).execute_command(*words)

    async def commands(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """The answers to several, in one round trip; not one step for others."""
        if not commands:
            return []
        async with _Failing(self._patience_seconds):
            self._count(len(commands))
            pipeline = self._started(self._client).pipeline(transaction=False)
            for words in commands:
                pipeline.execute_command(*words)
            answers: list[Any] = await pipeline.execute()
            return answers

    async def script(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Word],
        *,
        replicas: int = 0,
    ) -> Any:
        """What a script returns, once so many replicas have what it wrote."""
        words = (len(keys), *keys, *arguments)
        async with _Failing(self._patience_seconds):
            self._count(1)
            try:
                return await self._run(("EVALSHA", script.sha, *words), replicas)
            except NoScriptError:
                return await self._run(("EVAL", script.text, *words), replicas)

    async def _run(self, words: Sequence[Word], replicas: int) -> Any:
        if not replicas:
            return await self._started(self._client).execute_command(*words)
        # WAIT speaks of what its own connection has written.
        pipeline = self._started(self._client).pipeline(transaction=False)
        pipeline.execute_command(*words)
        pipeline.execute_command("WAIT", replicas, int(self._patience_seconds * 300))
        answer, having = await pipeline.execute()
        if having < replicas:
            raise CoordinatorUnavailable(f"{having} of {replicas} replicas have what was written")
        return answer

    async def entries(self, stream: str, first: str, last: str, *, limit: int) -> list[Entry]:
        """What lies in a stream from `first` to `last`, at most so many; "(" excludes."""
        rows = await self.command("XRANGE", stream, first, last, "COUNT", limit)
        return [(each[0], _fields(each[1])) for each in rows]

    async def read(
        self, streams: Sequence[tuple[str, str]], *, wait_seconds: float, limit: int = 1000
    ) -> dict[bytes, list[Entry]]:
        """What came into streams (key and last id known) since; waits for the first of it."""
        words: list[Word] = ["XREAD", "COUNT", limit, "BLOCK", max(1, int(wait_seconds * 1000))]
        words += ["STREAMS", *(key for key, _ in streams), *(last for _, last in streams)]
        async with _Failing(self._patience_seconds + wait_seconds):
            self._count(1)
            raw = await self._started(self._waiting).execute_command(*words)
        return _streams(raw)

    def _started(self, client: Any) -> Any:
        # Other nodes ask this one from the moment its port is open, which is before that.
        if client is None:
            raise CoordinatorUnavailable("this node is not connected to Redis")
        return client


class _Failing:
    """Turns whatever goes wrong within so many seconds into CoordinatorUnavailable.

    Up to Python 3.11 the client may lose a cancellation (asyncio.wait_for does, where what it waits
    for is done in the same step); whoever waits for the task to end would wait for ever."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._cancelled_before = 0

    async def __aenter__(self) -> None:
        self._cancelled_before = _cancellations()
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise CoordinatorUnavailable("Redis does not answer in time") from late
        if isinstance(error, (RedisError, OSError)) and not isinstance(error, NoScriptError):
            raise CoordinatorUnavailable(f"Redis: {error}") from error
        if error is None and _cancellations() > self._cancelled_before:
            raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _streams(raw: Any) -> dict[bytes, list[Entry]]:
    pairs = raw.items() if isinstance(raw, dict) else raw or ()
    found: dict[bytes, list[Entry]] = {}
    for key, entries in pairs:
        # RESP3 wraps the entries of a stream once more.
        rows = entries[0] if entries and isinstance(entries[0][0], list) else entries
        found[key] = [(each[0], _fields(each[1])) for each in rows]
    return found


def _fields(raw: Any) -> dict[bytes, bytes]:
    """An entry's fields, in whichever form the client hands them over: to what `read` and XRANGE
    answer it does not do the same."""
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return raw
    return dict(zip(raw[::2], raw[1::2], strict=True))


def _client(url: str, patience_seconds: float) -> Any:
    how: dict[str, Any] = {
        "socket_timeout": patience_seconds,
        "socket_connect_timeout": _CONNECT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    scheme = url.partition("://")[0]
    if scheme.endswith("+cluster"):
        return RedisCluster.from_url(url.replace("+cluster", "", 1), **how)
    if scheme == "redis+sentinel":
        return _sentinel(url, how)
    return aioredis.Redis.from_url(url, **how)


def _sentinel(url: str, how: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not hosts or not service:
        raise ValueError("redis+sentinel://host:port[,host:port]/SERVICE[/DB] is needed")
    user, _, password = credentials.partition(":")
    if password:
        how = {**how, "password": unquote(password), "username": unquote(user) or None}
    places = [_place(each) for each in hosts.split(",")]
    untyped: Any = Sentinel
    sentinel = untyped(places, sentinel_kwargs={"socket_timeout": _CONNECT_SECONDS}, **how)
    return sentinel.master_for(service, db=int(database or 0))


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        return text, 26_379
    return host.strip("[]"), int(port)
