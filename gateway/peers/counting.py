"""The route by which other nodes ask what this one holds of a dataset."""

from collections.abc import Awaitable, Callable

from gateway.errors import S3Error
from gateway.peers.request import PeerAnswer, PeerRequest, Route
from gateway.tiers.peers.asking import WrongQuestionError, query_of
from gateway.tiers.peers.counting import HELD_PATH


def held_route(held_bytes: Callable[[str, str], Awaitable[int]]) -> Route:
    """Answers with what `held_bytes` gives for a bucket and a prefix."""

    async def held(request: PeerRequest) -> PeerAnswer:
        try:
            fields = query_of(request.query)
            size_bytes = await held_bytes(fields.get("bucket", ""), fields.get("prefix", ""))
        except WrongQuestionError as error:
            return PeerAnswer(400, body=str(error).encode())
        except S3Error as error:
            return PeerAnswer(error.status)
        return PeerAnswer(body=b"%d" % size_bytes)

    return Route("GET", HELD_PATH, held)
