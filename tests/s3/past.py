"""Clients that ask past packs, and nodes over each kind of origin to ask."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer
from tests.s3.running import Reply, Running, running

BYPASS = {"x-feedrack-packs": "bypass"}


def past_packs(client: Any) -> Any:
    """The client, from now on signing `x-feedrack-packs: bypass` with every request."""

    def mark(request: Any, **_: Any) -> None:
        request.headers["x-feedrack-packs"] = "bypass"

    client.meta.events.register("before-sign.s3", mark)
    return client


async def ask(
    node: Running,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Reply:
    """One signed request and its answer."""
    wire = await node.connect()
    await wire.send(node.signed(method, target, headers, body))
    return await wire.reply(method)


@asynccontextmanager
async def node_over(
    kind: str,
    folder: Path,
    moto: MotoServer,
    *,
    policy: Sequence[Mapping[str, Any]] = (),
    buckets: Mapping[str, Any] | None = None,
) -> AsyncIterator[Running]:
    """A node with an empty bucket "train" over a `directory` or `moto`."""
    origin = None
    if kind == "moto":
        moto.reset()
        secret = folder / "origin-secret"
        secret.write_text(SECRET_KEY.reveal())
        origin = {
            "type": "s3",
            "endpoint_url": moto.url,
            "access_key": ACCESS_KEY,
            "secret_key_file": str(secret),
            "addressing": "path",
        }
    async with running(folder, origin=origin, policy=policy, buckets=buckets) as node:
        node.origin = kind
        assert (await ask(node, "PUT", "/train")).status == 200
        yield node
