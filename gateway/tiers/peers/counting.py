"""Asks a node what it holds of a dataset, out of its own index: where the counters of the directory
are too coarse for it.

    GET /v1/held?bucket=&prefix=      the answer's body: a number of bytes
"""

from urllib.parse import urlencode

from gateway.cluster.members import Member
from gateway.errors import TierUnavailable
from gateway.tiers.peers.client import PeerClient

HELD_PATH = "/v1/held"


class HeldAsker:
    """`AskHeld` over the peers' port."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client

    async def __call__(self, member: Member, bucket: str, prefix: str) -> int | None:
        query = urlencode({"bucket": bucket, "prefix": prefix}, errors="surrogatepass")
        try:
            status, body = await self._client.ask_whole(
                member, f"{HELD_PATH}?{query}", what="held", limit_bytes=64
            )
        except TierUnavailable:
            return None
        return int(body) if status == 200 and body.isdigit() else None
