"""The route by which a node that leaves hands over what it holds."""

from collections.abc import Awaitable, Callable, Sequence

from gateway.cluster.members import Member, Members
from gateway.model.objects import Span
from gateway.peers.request import PeerAnswer, PeerRequest, Route
from gateway.tiers.peers.asking import WrongQuestionError
from gateway.tiers.peers.taking import TAKE_PATH, decode_spans

Take = Callable[[Member, Sequence[Span]], Awaitable[int]]


def take_route(take: Take, members: Members) -> Route:
    """Has `take` bring in what the asker holds, and answers with how much of it is here."""

    async def taken(request: PeerRequest) -> PeerAnswer:
        asker = members.get(request.asker)
        if asker is None:
            return PeerAnswer(404)
        try:
            spans = decode_spans(request.body)
        except WrongQuestionError as error:
            return PeerAnswer(400, body=str(error).encode())
        return PeerAnswer(body=b"%d" % await take(asker, spans))

    return Route("POST", TAKE_PATH, taken)
