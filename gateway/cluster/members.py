"""Who is in the cluster, and where. Plain values; who keeps them current is `membership.py`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct


class Member(Struct, frozen=True, kw_only=True):
    """One node that is alive. `incarnation` names one run of it; `peers` is the "host:port" that
    other nodes ask, `s3` and `admin` are URLs. `shape` is how it cuts objects: chunk size and small
    object limit, in bytes. `joined` orders the members by when they came."""

    id: str
    incarnation: str
    rack: str
    zone: str
    peers: str
    s3: str
    admin: str
    capacity_bytes: int
    version: str
    shape: tuple[int, int] = (0, 0)
    state: Literal["serving", "draining"] = "serving"
    joined: int = 0


class Members:
    """The members as of now, this node among them while it is one. `on_change` functions are called
    after each change, on the event loop, and must not raise."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.on_change: list[Callable[[], None]] = []
        # Counts the changes, for those who remember what they made of the members.
        self.version = 0
        self._members: dict[str, Member] = {}

    def all(self) -> tuple[Member, ...]:
        """By id."""
        return tuple(self._members[id_] for id_ in sorted(self._members))

    def serving(self) -> tuple[Member, ...]:
        """Those that are not about to leave: where bytes may have their home."""
        return tuple(each for each in self.all() if each.state == "serving")

    def get(self, id_: str) -> Member | None:
        return self._members.get(id_)

    def here(self) -> Member | None:
        """This node, while it is a member."""
        return self._members.get(self.me)

    def set(self, members: Iterable[Member]) -> None:
        """Those and no others from now on."""
        found: Mapping[str, Member] = {each.id: each for each in members}
        if found == self._members:
            return
        self._members = dict(found)
        self.version += 1
        for told in self.on_change:
            told()


encode_member = msgspec.json.Encoder().encode
decode_member = msgspec.json.Decoder(Member).decode
