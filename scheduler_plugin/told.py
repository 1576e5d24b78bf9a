"""What gateways tell, as far as decisions need it."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

Bytes = Annotated[int, Meta(ge=0, le=2**60)]


class GatewayNode(Struct, frozen=True):
    """A member, as `/v1/members` tells of it."""

    id: str
    rack: str
    state: str = ""


class Counted(Struct, frozen=True):
    """Bytes held of a dataset by node, and the tenants that may read all of it (`*`: everybody)."""

    dataset: str
    nodes: Mapping[str, Bytes]
    readers: Sequence[str] = ()
