"""What a gateway on this machine hands over: an offer by HTTP, then open files by a Unix socket.

What they say to each other is in `feedrack/offer.py`.
"""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from feedrack.client import Client
from feedrack.errors import FeedrackError, Unavailable
from feedrack.offer import Message, Offer, Wanted, own_clock
from feedrack.signing import Query

_SOCKET_SECONDS = 10.0
_MESSAGE_BYTES = 4096
# As many names as one message takes: what is left out is asked for the next time.
_MOST_NAMES = 1024
_PEER = struct.Struct("3i")


class File(NamedTuple):
    """A file that was handed over: who takes it closes the descriptor."""

    name: str
    descriptor: int


class NotHere(Exception):  # noqa: N818 - no error, but a fact
    """The gateway is on another machine, or hands nothing over."""


_offer = msgspec.json.Decoder(Offer)
_message = msgspec.json.Decoder(Message)


def ask_offer(client: Client, prefix: str) -> Offer | None:
    """What the gateway offers; None where it is none, or has nothing to offer. Unavailable."""
    query: Query = (("feedrack-packs", ""), ("prefix", prefix))
    try:
        if not client.finds_gateway():
            return None
        answer = client.ask("GET", None, query)
    except Unavailable:
        raise
    except FeedrackError:
        return None
    try:
        found = _offer.decode(answer.body)
    except msgspec.MsgspecError:
        # A gateway from before offers takes it for a listing.
        return None
    return found if found.packs and found.clock == own_clock() else None


def fetch(offer: Offer, names: Sequence[str]) -> Iterator[File]:
    """The files of those names that the gateway still has, as they come. NotHere, OSError."""
    if not names:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wire:
        wire.settimeout(_SOCKET_SECONDS)
        try:
            wire.connect("\0" + offer.socket)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise NotHere("no such socket on this machine") from error
        # A name like that is anybody's to take, once the gateway is gone.
        peer = _PEER.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if peer[1] != offer.uid:
            raise NotHere("the socket is somebody else's")
        wire.send(msgspec.json.encode(Wanted(offer.token, tuple(names[:_MOST_NAMES]))))
        while True:
            raw, descriptors, _, _ = socket.recv_fds(wire, _MESSAGE_BYTES, 1)
            try:
                message = _message.decode(raw)
            except msgspec.MsgspecError:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise NotHere("the gateway broke off") from None
            if not message.name:
                return
            for descriptor in descriptors:
                yield File(message.name, descriptor)
