"""`/v1/prefetch`: what the operator, or a scheduler, asks to be brought in ahead of its readers."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.cluster.jobs import TooManyJobs
from gateway.cluster.warming import BadPrefetch, NobodyServes, check_priority, read_asked
from gateway.errors import NoSuchBucket, S3Error, TierUnavailable
from gateway.store.prefetch import Prefetcher

Handler = Callable[[web.Request], Awaitable[web.Response]]


class PrefetchRoutes:
    """The handlers, over a node's part in prefetching."""

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/prefetch/{id}"
        return [
            web.post("/v1/prefetch", _answering(self._create)),
            web.get("/v1/prefetch", _answering(self._all)),
            web.get(one, _answering(self._get)),
            web.patch(one, _answering(self._patch)),
            web.delete(one, _answering(self._cancel)),
        ]

    async def _create(self, request: web.Request) -> web.Response:
        spec, priority = read_asked(await request.read())
        return _json({"id": await self._prefetcher.create(spec, priority)}, status=202)

    async def _all(self, request: web.Request) -> web.Response:
        jobs = await self._prefetcher.all(request.query.get("job"))
        return _json({"prefetches": [each.plain() for each in jobs]})

    async def _get(self, request: web.Request) -> web.Response:
        job = await self._prefetcher.get(request.match_info["id"])
        return _unknown() if job is None else _json(job.plain())

    async def _patch(self, request: web.Request) -> web.Response:
        priority = check_priority(_priority_in(await request.read()))
        id_ = request.match_info["id"]
        if not await self._prefetcher.set_priority(id_, priority):
            return await self._not_running(id_)
        return _json({"id": id_, "priority": priority})

    async def _cancel(self, request: web.Request) -> web.Response:
        id_ = request.match_info["id"]
        if not await self._prefetcher.cancel(id_):
            return await self._not_running(id_)
        return _json({"id": id_, "state": "cancelled"})

    async def _not_running(self, id_: str) -> web.Response:
        job = await self._prefetcher.get(id_)
        return _unknown() if job is None else _json({"error": f"it is {job.state}"}, status=409)


def _answering(handler: Handler) -> Handler:
    """A handler whose errors are answers."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except BadPrefetch as error:
            return _json({"error": str(error)}, status=400)
        except NobodyServes as error:
            return _json({"error": str(error)}, status=409)
        except TooManyJobs as error:
            return _json({"error": str(error)}, status=429)
        except NoSuchBucket as error:
            return _json({"error": error.message}, status=404)
        except S3Error as error:
            return _json({"error": f"{error.code}: {error.message}"}, status=502)
        except TierUnavailable as error:
            return _json({"error": str(error)}, status=503)

    return answer


def _priority_in(raw: bytes) -> object:
    try:
        document = msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise BadPrefetch(f"the document cannot be read: {error}") from error
    if not isinstance(document, dict) or set(document) != {"priority"}:
        raise BadPrefetch('{"priority": …} is needed')
    return document["priority"]


def _unknown() -> web.Response:
    return _json({"error": "no such prefetch, or it ended more than an hour ago"}, status=404)


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json"
    )
