"""What a gateway and a reader on its machine say to each other. Pure.

The offer (`GET /{bucket}?feedrack-packs&prefix=...`, JSON) names packs, and a socket with a token
that is good once and for a short while. To the socket (SOCK_SEQPACKET, abstract) the reader sends
`Wanted`; each file comes as a `Message` with its descriptor: a page (`feedrack/page.py`), an index
or a shard.
"""

from pathlib import Path

from msgspec import Struct


class OfferedShard(Struct, frozen=True):
    """A shard of a pack; `held`: this node has it, and hands it over."""

    sha256: str
    size_bytes: int
    held: bool = False


class OfferedPack(Struct, frozen=True):
    """A pack: its generation, how far its log goes, and the keys it does not speak for by then.

    `page` names the page of shared memory that holds for it."""

    prefix: str
    generation: int
    through: int
    page: str
    index: OfferedShard
    shards: tuple[OfferedShard, ...]
    overridden: tuple[str, ...] = ()


class Offer(Struct, frozen=True):
    """What a gateway offers to hand over. `uid`: who runs it; `clock`: the time namespace that its
    page's deadlines are of."""

    node: str
    socket: str
    uid: int
    clock: str
    token: str
    packs: tuple[OfferedPack, ...] = ()


def own_clock() -> str:
    """The time namespace of this process: CLOCK_MONOTONIC is one for all within it."""
    try:
        return str(Path("/proc/self/ns/time").readlink())
    except OSError:
        # Before Linux 5.6 there are none.
        return ""


class Wanted(Struct, frozen=True):
    """What a reader asks for over the socket, by name."""

    token: str
    names: tuple[str, ...]


class Message(Struct, frozen=True):
    """One file on its way; `name` "" is the end."""

    name: str
