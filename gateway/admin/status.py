"""`feedrack status`: asks a node's admin port and shows the answer as tables."""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from gateway.errors import FeedrackError

_TIERS = ("disk", "rack", "remote", "origin")
_TIMEOUT = aiohttp.ClientTimeout(total=10)


class StatusError(FeedrackError):
    """The admin port could not be asked."""


class TierReads(Struct, frozen=True):
    """What one tier has served since the node started."""

    tier: str
    requests: int
    bytes: int


class Status(Struct, frozen=True):
    """A node's answer to "how do you do?"."""

    members: list[dict[str, Any]]
    tiers: list[TierReads]
    fills: list[dict[str, Any]]
    origin_requests: int
    origin_read_bytes: int


class _Members(Struct):
    members: list[dict[str, Any]]


class _Fills(Struct):
    fills: list[dict[str, Any]]


async def fetch(url: str, token: str | None) -> Status:
    """Asks the node at `url`. StatusError says what stood in the way."""
    url = url.rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session:
            members = msgspec.json.decode(await _get(session, f"{url}/v1/members"), type=_Members)
            fills = msgspec.json.decode(await _get(session, f"{url}/v1/fills"), type=_Fills)
            text = (await _get(session, f"{url}/metrics")).decode()
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StatusError(f"{url}: {error or 'no answer'}") from error
    except ValueError as error:
        raise StatusError(f"{url}: not a feedrack admin port: {error}") from error

    def total(name: str, **labels: str) -> int:
        return int(
            sum(
                sample.value
                for sample in samples
                if sample.name == name
                and all(sample.labels.get(key) == value for key, value in labels.items())
            )
        )

    return Status(
        members=members.members,
        tiers=[
            TierReads(
                tier,
                total("feedrack_request_seconds_count", tier=tier, operation="GetObject"),
                total("feedrack_read_bytes_total", tier=tier),
            )
            for tier in _TIERS
        ],
        fills=fills.fills,
        origin_requests=total("feedrack_origin_requests_total"),
        origin_read_bytes=total("feedrack_origin_read_bytes_total"),
    )


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as answer:
        body = await answer.read()
        if answer.status != 200:
            said = body[:200].decode("utf-8", "replace").strip()
            raise StatusError(f"{url}: {answer.status} {said}")
        return body


def render(status: Status, console: Console | None = None) -> None:
    """Prints the tables."""
    console = console or Console()
    members = Table("node", "rack", "zone", "state", "cache", "S3", title="Members")
    for member in status.members:
        held = f"{decimal(member['cache_bytes'])} of {decimal(member['cache_capacity_bytes'])}"
        if member["cache_degraded"]:
            held += f" (takes nothing in: {member['cache_degraded']})"
        for what, ratio in member.get("rebuilding", {}).items():
            held += f" ({what}: {100 * ratio:.0f} %)"
        members.add_row(
            member["id"], member["rack"], member["zone"], member["state"], held, member["s3"]
        )
    console.print(members)
    served = sum(tier.requests for tier in status.tiers)
    tiers = Table("tier", "GetObject", "share", "bytes", title="Reads since start")
    for tier in status.tiers:
        share = f"{100 * tier.requests / served:.1f} %" if served else "-"
        tiers.add_row(tier.tier, str(tier.requests), share, decimal(tier.bytes))
    console.print(tiers)
    console.print(
        f"Origin: {status.origin_requests} requests, {decimal(status.origin_read_bytes)} read"
    )
    if status.fills:
        fills = Table("key", "chunk", "received", title="Filling")
        for fill in status.fills:
            received = f"{decimal(fill['received_bytes'])} of {decimal(fill['bytes'])}"
            fills.add_row(f"{fill['bucket']}/{fill['key']}", str(fill["chunk"]), received)
        console.print(fills)
