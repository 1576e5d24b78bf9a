"""What a read has found out of a key before its bytes: from memory, or by asking."""

from msgspec import Struct

from gateway.model.objects import KnownObject, ObjectInfo, PartSpan
from gateway.store.fill import FollowingReader
from gateway.tiers.protocol import TierName


class Look(Struct, frozen=True):
    """The version to answer with, the part asked for, and what it took to know.

    `brought`: that tier was asked for bytes, so the answer's first one comes from there even if
    the disk has it by the time it is read. `coming` keeps them at hand until then.
    """

    known: KnownObject
    tier: TierName
    part: PartSpan | None = None
    brought: TierName | None = None
    coming: FollowingReader | None = None

    @property
    def info(self) -> ObjectInfo:
        return self.known.info


class Learned(Struct, frozen=True):
    """What was asked of a key, and what came of it. `since`: when the origin said so, by the clock
    of tickets. `coming`: the first chunk, if it comes along."""

    info: ObjectInfo
    since: float
    tier: TierName
    coming: FollowingReader | None = None
