"""Clients that put, get, delete, copy and list through random nodes, and write down what they saw.

Bodies are made from their number, so that every byte of an answer can be checked against its ETag.
"""

import asyncio
import hashlib
import io
import itertools
import random
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import aiohttp
import yarl

from feedrack.profile import Credentials
from feedrack.signing import EMPTY_SHA256, Signer, encode_query
from tests.cluster.history import Operation
from tests.node.process import ACCESS_KEY, SECRET_KEY

# The longest that any request may take, whatever has failed; docs/operating.md promises it.
BOUND_SECONDS = 20.0
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
# Small ones are bundled, some go in one chunk, some in three.
_SIZES = (0, 100, 3000, 50_000, 300_000, 2_500_000)
_SIZE_WEIGHTS = (1, 8, 8, 4, 2, 1)
_PAUSE_SECONDS = 0.05
_MOST_AT_A_NODE = 5

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Body:
    """The content of one object version."""

    number: int
    size: int

    @property
    def content(self) -> bytes:
        return random.Random(self.number).randbytes(self.size)


@dataclass
class Seen:
    """What came of it all. `wrong`: answers that are wrong by themselves."""

    history: list[Operation] = field(default_factory=list)
    bodies: dict[str, Body] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    # Requests that are under way, by node.
    asking: Counter[int] = field(default_factory=Counter)


class Bodies:
    """New bodies, each told apart from all others by its ETag."""

    def __init__(self, seen: Seen, chance: random.Random) -> None:
        self._seen = seen
        self._chance = chance
        self._numbers = itertools.count(1)

    def make(self, size: int | None = None) -> tuple[str, bytes]:
        """An ETag and its content; nothing is made empty twice."""
        if size is None:
            [size] = self._chance.choices(_SIZES, _SIZE_WEIGHTS)
        body = Body(next(self._numbers), max(size, 16))
        content = body.content
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self._seen.bodies[etag] = body
        return etag, content


class Client:
    """One client: asks one thing after another, each of a random node."""

    def __init__(
        self,
        number: int,
        endpoints: Sequence[str],
        keys: Sequence[str],
        prefixes: Sequence[str],
        bodies: Bodies,
        seen: Seen,
        chance: random.Random,
        session: aiohttp.ClientSession,
    ) -> None:
        self.number = number
        self._endpoints = endpoints
        self._keys, self._prefixes = keys, prefixes
        self._bodies, self._seen, self._chance = bodies, seen, chance
        self._session = session
        self._signers = [
            Signer(urlsplit(url).netloc, "us-east-1", lambda: Credentials(ACCESS_KEY, SECRET_KEY))
            for url in endpoints
        ]

    async def run(self, ends: float) -> None:
        turns: list[tuple[Callable[[int, str], Awaitable[None]], int]] = [
            (self.get, 45),
            (self.get_range, 8),
            (self.put, 20),
            (self.delete, 8),
            (self.copy, 8),
            (self.list, 11),
        ]
        does, weights = zip(*turns, strict=True)
        while time.monotonic() <= ends:
            [do] = self._chance.choices(does, weights)
            await do(self._some_node(), self._chance.choice(self._keys))
            await asyncio.sleep(self._chance.random() * _PAUSE_SECONDS)

    def _some_node(self) -> int:
        """Any, but for those that keep enough clients waiting already: one that is frozen would
        soon have them all."""
        nodes = range(len(self._endpoints))
        free = [node for node in nodes if self._seen.asking[node] < _MOST_AT_A_NODE]
        return self._chance.choice(free or nodes)

    async def put(self, node: int, key: str) -> None:
        etag, content = self._bodies.make()
        await self.put_this(node, key, etag, content)

    async def put_this(self, node: int, key: str, etag: str, content: bytes) -> bool:
        asked = time.monotonic()
        answer = await self._ask("PutObject", "PUT", node, key, body=content)
        if answer is None:
            return False
        done = answer.status == 200
        self._note("put", key, asked, node, etag, done=done)
        return done

    async def delete(self, node: int, key: str) -> None:
        asked = time.monotonic()
        answer = await self._ask("DeleteObject", "DELETE", node, key)
        if answer is not None:
            self._note("delete", key, asked, node, None, done=answer.status == 204)

    async def copy(self, node: int, key: str) -> None:
        source = self._chance.choice([each for each in self._keys if each != key])
        asked = time.monotonic()
        answer = await self._ask(
            "CopyObject", "PUT", node, key, headers={"x-amz-copy-source": quote(f"/{source}")}
        )
        if answer is None:
            return
        etag = None
        if answer.status == 200:
            with suppress(ElementTree.ParseError):
                found = ElementTree.fromstring(answer.body).findtext(f"{_NAMESPACE}ETag")
                etag = found.strip('"') if found is not None else None
        done = etag is not None or answer.status == 404
        self._note("copy", key, asked, node, etag, done=done, source=source)

    async def get(self, node: int, key: str) -> None:
        await self._get(node, key, {})

    async def get_range(self, node: int, key: str) -> None:
        first = self._chance.choice((0, 10, 1_048_570))
        await self._get(node, key, {"range": f"bytes={first}-{first + 99}"}, first)

    async def list(self, node: int, key: str) -> None:
        bucket, _, prefix = self._chance.choice(self._prefixes).partition("/")
        asked = time.monotonic()
        query: Query = (("list-type", "2"), ("prefix", prefix))
        answer = await self._ask("ListObjectsV2", "GET", node, bucket, query)
        if answer is None or answer.status != 200:
            return
        answered = time.monotonic()
        try:
            contents = ElementTree.fromstring(answer.body).findall(f"{_NAMESPACE}Contents")
        except ElementTree.ParseError:
            self._seen.wrong.append(f"ListObjectsV2 {bucket}/{prefix} by n{node + 1}: no XML")
            return
        shows = {
            f"{bucket}/{each.findtext(f'{_NAMESPACE}Key')}": (
                each.findtext(f"{_NAMESPACE}ETag") or ""
            ).strip('"')
            for each in contents
        }
        covers = frozenset(each for each in self._keys if each.startswith(f"{bucket}/{prefix}"))
        self._seen.history.append(
            Operation(
                "list", f"{bucket}/{prefix}", asked, answered,
                covers=covers, shows=shows, client=self.number, node=node,
            )
        )  # fmt: skip

    async def _get(
        self, node: int, key: str, headers: dict[str, str], first: int | None = None
    ) -> None:
        asked = time.monotonic()
        answer = await self._ask("GetObject", "GET", node, key, headers=headers)
        if answer is None or answer.status not in (200, 206, 404, 416):
            return
        if answer.status == 416:
            return
        etag = answer.headers.get("etag", "").strip('"') if answer.status != 404 else None
        if etag is not None:
            body = self._seen.bodies.get(etag)
            expected = body.content if body is not None else None
            if expected is not None and first is not None:
                expected = expected[first : first + 100]
            if answer.body != expected:
                tier = answer.headers.get("x-feedrack-tier")
                self._seen.wrong.append(
                    f"GetObject {key} {headers} by n{node + 1} ({tier}): "
                    f"{len(answer.body)} bytes are not those of {etag}"
                )
                return
        self._note("get", key, asked, node, etag, done=True)

    def _note(
        self,
        what: str,
        key: str,
        asked: float,
        node: int,
        value: str | None,
        *,
        done: bool,
        source: str = "",
    ) -> None:
        answered = time.monotonic() if done else None
        self._seen.history.append(
            Operation(
                what, key, asked, answered, value,  # type: ignore[arg-type]
                source=source, client=self.number, node=node,
            )
        )  # fmt: skip

    async def _ask(
        self,
        operation: str,
        method: str,
        node: int,
        path: str,
        query: Query = (),
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> "_Answer | None":
        """The answer; status 0 where it broke off. None: nobody was reached."""
        target = "/" + quote(path, safe="/-._~")
        text = encode_query(query)
        sha256 = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
        signed = self._signers[node].headers(method, target, text, headers or {}, sha256)
        # aiohttp warns of large bodies that it is to send in one piece.
        sent = io.BytesIO(body) if body else None
        url = yarl.URL(f"{self._endpoints[node]}{target}{'?' if text else ''}{text}", encoded=True)
        begun = time.monotonic()
        answer: _Answer | None = _Answer(0, {}, b"")
        self._seen.asking[node] += 1
        try:
            async with (
                asyncio.timeout(BOUND_SECONDS),
                self._session.request(method, url, headers=signed, data=sent) as response,
            ):
                found = {name.lower(): value for name, value in response.headers.items()}
                answer = _Answer(response.status, found, await response.read())
        except aiohttp.ClientConnectorError:
            answer = None
        except TimeoutError:
            self._seen.wrong.append(
                f"{operation} {path} by n{node + 1} took more than {BOUND_SECONDS:.0f} s, "
                f"asked at {begun:.3f}"
            )
        except (aiohttp.ClientError, OSError):
            pass
        finally:
            self._seen.asking[node] -= 1
        took = time.monotonic() - begun
        self._seen.slowest_seconds = max(self._seen.slowest_seconds, took)
        code = "refused" if answer is None else str(answer.status)
        self._seen.codes[f"{operation} {code}"] += 1
        if answer is not None and answer.status in (400, 403, 405, 500, 501):
            self._seen.wrong.append(f"{operation} {path} by n{node + 1}: {answer.body!r}")
        return answer


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes
