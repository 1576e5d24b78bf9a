"""The admin port's HTTP face.

`/healthz` and `/readyz` are open to anybody who reaches the port. All else wants
`Authorization: Bearer <token>`; without a token in the configuration only `/metrics` can be opened,
by `[admin] public_metrics = true`.
"""

import hmac
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from gateway.admin.dataset_pages import MOST_DATASETS, DatasetPages
from gateway.admin.datasets import Datasets
from gateway.admin.prefetch import PrefetchRoutes
from gateway.admin.report import NodeReport
from gateway.config import AdminConfig, Secret, parse_listen
from gateway.errors import NoSuchBucket, TierUnavailable
from gateway.store.prefetch import Prefetcher
from gateway.telemetry.metrics import Metrics

_OPEN = frozenset({"/healthz", "/readyz"})
_LIMIT = re.compile("[0-9]{1,5}")
# What is not UTF-8 comes as these.
_LONE = re.compile("[\ud800-\udfff]")
_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """Serves the admin port. `on_drain` is called by `POST /v1/drain`, `on_restart` by
    `POST /v1/restart` where the node can do that. `listeners`: sockets bound already."""

    def __init__(
        self,
        config: AdminConfig,
        *,
        token: Secret | None,
        report: NodeReport,
        metrics: Metrics,
        datasets: Datasets,
        pages: DatasetPages,
        prefetcher: Prefetcher,
        on_drain: Callable[[], None],
        on_restart: Callable[[], None] | None = None,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        self._config = config
        self._token = token
        self._report = report
        self._metrics = metrics
        self._datasets = datasets
        self._pages = pages
        self._prefetcher = prefetcher
        self._on_drain = on_drain
        self._on_restart = on_restart
        self._listeners = listeners
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Binds the port; 0 takes a free one, told by `port`."""
        app = web.Application(middlewares=[self._authorise], client_max_size=1024 * 1024)
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._render_metrics),
                web.get("/v1/members", self._members),
                web.get("/v1/datasets", self._datasets_held),
                web.get("/v1/fills", self._fills),
                *PrefetchRoutes(self._prefetcher).routes(),
                web.post("/v1/drain", self._drain),
                web.post("/v1/restart", self._restart),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        if self._listeners:
            for listener in self._listeners:
                await web.SockSite(self._runner, listener).start()
        else:
            host, port = parse_listen(self._config.listen, "admin.listen")
            await web.TCPSite(self._runner, host, port).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _OPEN or (request.path == "/metrics" and self._config.public_metrics):
            return await handler(request)
        if self._token is None:
            return _refuse(403, "set [admin] token_file to open this part of the admin port")
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            offered.strip().encode(), self._token.reveal().encode()
        ):
            return _refuse(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        readiness = await self._report.readiness()
        return _json(readiness, status=200 if readiness["ready"] else 503)

    async def _render_metrics(self, _: web.Request) -> web.Response:
        self._report.refresh()
        return web.Response(body=self._metrics.render(), headers={"Content-Type": _METRICS_TYPE})

    async def _members(self, _: web.Request) -> web.Response:
        return _json({"members": await self._report.members()})

    async def _datasets_held(self, request: web.Request) -> web.Response:
        try:
            if "dataset" in request.query:
                return _json(await self._datasets.held(*_named(request, "dataset")))
            after = _named(request, "after") if "after" in request.query else None
            return _json(await self._pages.page(after, _limit(request)))
        except ValueError as error:
            return _refuse(400, str(error))
        except NoSuchBucket as error:
            return _refuse(404, f"{error.fields.get('BucketName', '')}: {error.message}")
        except TierUnavailable as error:
            return _refuse(503, str(error))

    async def _fills(self, _: web.Request) -> web.Response:
        return _json({"fills": self._report.fills()})

    async def _drain(self, _: web.Request) -> web.Response:
        self._on_drain()
        return _json({"status": "draining"}, status=202)

    async def _restart(self, _: web.Request) -> web.Response:
        if self._on_restart is None:
            return _refuse(409, "a node of one process cannot be restarted in parts")
        self._on_restart()
        return _json({"status": "restarting"}, status=202)


def _named(request: web.Request, parameter: str) -> tuple[str, str]:
    """The bucket and prefix that a parameter names. ValueError."""
    name = request.query[parameter]
    bucket, _, prefix = name.removeprefix("s3://").partition("/")
    if not name.startswith("s3://") or not bucket or _LONE.search(name):
        raise ValueError(f"{parameter} must be s3://bucket/prefix, in UTF-8")
    return bucket, prefix


def _limit(request: web.Request) -> int:
    """How many datasets a page may have. ValueError."""
    text = request.query.get("limit", str(MOST_DATASETS))
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= MOST_DATASETS:
        raise ValueError(f"limit must be a number from 1 to {MOST_DATASETS}")
    return int(text)


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value) + b"\n",
        status=status,
        headers=headers,
        content_type="application/json",
    )


def _refuse(status: int, error: str, headers: dict[str, str] | None = None) -> web.Response:
    return _json({"error": error}, status=status, headers=headers)
