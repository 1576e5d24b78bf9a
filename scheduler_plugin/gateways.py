"""The gateways' admin ports, asked over HTTP: who holds what, and what is to be brought in.

One of them that answers is enough; the next is asked where one does not, or says something that
cannot be understood. Nothing of what they say is taken for more than a hint: bodies are bounded,
names and numbers are checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from scheduler_plugin.dataset import Dataset
from scheduler_plugin.told import Bytes, Counted, GatewayNode

_MOST_BODY_BYTES = 64 * 1024**2
_MOST_PAGES = 100
_PAGE = 10_000

_T = TypeVar("_T")


class GatewaysUnavailable(Exception):  # noqa: N818 - as the other internal errors
    """No gateway answers, or none as it should; the message says what the last one did."""


class TooBusy(GatewaysUnavailable):
    """They take no more prefetches for now."""


class NobodyServes(GatewaysUnavailable):
    """A rack that is to be warmed has no node that serves just now; it may come back."""


class Refused(GatewaysUnavailable):
    """What was asked for is nothing they know, such as a bucket; asking again is no use."""


_REFUSALS = {400: Refused, 404: Refused, 409: NobodyServes}


class Progress(Struct, frozen=True):
    """How far a prefetch is: bytes found, brought in, and given up; `listed` once all are found."""

    state: str
    listed: bool
    bytes: Mapping[str, int]

    @property
    def part(self) -> float:
        """Of what is to be brought in, what has been or never will be, 0 to 1."""
        if self.state != "running":
            return 1.0
        found = self.bytes.get("found", 0)
        over = self.bytes.get("done", 0) + self.bytes.get("failed", 0)
        return min(1.0, over / found) if self.listed and found > 0 else 0.0


class _Members(Struct):
    members: list[GatewayNode]


class _Page(Struct):
    datasets: list[Counted]
    next: str | None = None


class _HeldNode(Struct):
    id: str
    bytes: Bytes


class _Held(Struct):
    dataset: str
    nodes: list[_HeldNode]
    readers: list[str] = []


class _Created(Struct):
    id: str


class Gateways:
    """A client of them all. To be used as an async context manager."""

    def __init__(self, urls: Sequence[str], token: str, *, timeout_seconds: float = 10.0) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Gateways":
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def members(self) -> Sequence[GatewayNode]:
        """The nodes that are alive. GatewaysUnavailable, as from all of these."""
        return (await self._ask("GET", "/v1/members", _Members)).members

    async def counted(self) -> Sequence[Counted]:
        """All that the directory counts: a folder of two components, or one that holds keys."""
        found: list[Counted] = []
        after: str | None = None
        for _ in range(_MOST_PAGES):
            query = {"limit": str(_PAGE)} | ({"after": after} if after is not None else {})
            page = await self._ask("GET", "/v1/datasets", _Page, params=query)
            found += page.datasets
            if page.next is None:
                break
            after = page.next
        return found

    async def held(self, dataset: Dataset) -> Counted:
        """What is held of one dataset, however deep it lies."""
        params = {"dataset": _url(dataset)}
        answer = await self._ask("GET", "/v1/datasets", _Held, params=params)
        nodes = {each.id: each.bytes for each in answer.nodes}
        return Counted(answer.dataset, nodes, answer.readers)

    async def prefetch(
        self, dataset: Dataset, racks: Sequence[str], *, job: str, priority: int
    ) -> str:
        """Asks for the dataset in these racks; its id. TooBusy, NobodyServes."""
        asked = {"dataset": _url(dataset), "racks": racks, "job": job, "priority": priority}
        return (await self._ask("POST", "/v1/prefetch", _Created, body=asked)).id

    async def progress(self, id_: str) -> Progress:
        """How far one is. Refused where it is not known, or ended more than an hour ago."""
        return await self._ask("GET", f"/v1/prefetch/{id_}", Progress)

    async def set_priority(self, id_: str, priority: int) -> None:
        """Nothing where it has ended."""
        await self._ask(
            "PATCH", f"/v1/prefetch/{id_}", dict, body={"priority": priority}, gone=(404, 409)
        )

    async def cancel(self, id_: str) -> bool:
        """Whether it was still under way."""
        return bool(await self._ask("DELETE", f"/v1/prefetch/{id_}", dict, gone=(404, 409)))

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[_T],
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        gone: Sequence[int] = (),
    ) -> _T:
        """The first answer that can be understood, of kind `kind`."""
        problem: GatewaysUnavailable | None = None
        for url in list(self._urls):
            try:
                answer = await self._ask_one(method, url + path, kind, params, body, gone)
            except (NobodyServes, Refused, TooBusy):
                raise
            except GatewaysUnavailable as error:
                problem = error
                # The next question begins with one that may answer.
                self._urls.remove(url)
                self._urls.append(url)
                continue
            return answer
        assert problem is not None  # noqa: S101 - there is at least one address
        raise problem

    async def _ask_one(
        self,
        method: str,
        url: str,
        kind: type[_T],
        params: Mapping[str, str] | None,
        body: Any,
        gone: Sequence[int],
    ) -> _T:
        if self._session is None:
            raise GatewaysUnavailable("closed")
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, url, params=params, data=data, allow_redirects=False
            ) as answer:
                raw = await _read(answer)
        except (aiohttp.ClientError, TimeoutError, UnicodeError, ValueError) as error:
            raise GatewaysUnavailable(f"{url}: {error or 'no answer in time'}") from error
        if answer.status in gone:
            raw = b"{}"
        elif answer.status == 429:
            raise TooBusy(f"{url}: no more prefetches for now")
        elif answer.status not in (200, 202):
            said = raw[:200].decode("utf-8", "replace").strip()
            kind_of_error = _REFUSALS.get(answer.status, GatewaysUnavailable)
            raise kind_of_error(f"{url}: {answer.status} {said}")
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise GatewaysUnavailable(f"{url}: cannot be understood: {error}") from error


def _url(dataset: Dataset) -> str:
    """As they are asked for it. Refused where its name is not UTF-8, as all names of objects are:
    without the bytes that cannot be said it would be another dataset's."""
    try:
        dataset.url.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{dataset.url!a}: not UTF-8") from error
    return dataset.url


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body. ValueError where it is too long."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.content.iter_chunked(2**18):
        size += len(piece)
        if size > _MOST_BODY_BYTES:
            raise ValueError("the answer is too long")
        pieces.append(piece)
    return b"".join(pieces)
