"""What the two ends say to each other over HTTP besides the token: headers and documents. Pure.

See docs/rdma.md. Everything off in a document is refused with its place.
"""

import ipaddress
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gateway.rdma.token import SESSION_DIGITS

REPLY_HEADER = "x-amz-rdma-reply"
TRANSFERRED_HEADER = "x-amz-rdma-bytes-transferred"
FALLBACK_HEADER = "x-feedrack-rdma-fallback"
# The query that a session's requests carry, and its values.
SESSION_QUERY = "feedrack-rdma"
Step = Literal["prepare", "ready", "cancel"]

DECLINED = "501"
MEMORY_FULL_STATUS = 507
MEMORY_FULL_CODE = "RDMAMemoryFull"

FallbackReason = Literal["no-verbs", "no-device", "gateway", "connect", "transfer", "memory"]
FALLBACK_REASONS: tuple[FallbackReason, ...] = (
    "no-verbs",
    "no-device",
    "gateway",
    "connect",
    "transfer",
    "memory",
)
DOCUMENT_BYTES = 1024
Document = TypeVar("Document", bound=Struct)
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
MTUS = (256, 512, 1024, 2048, 4096)


class BadDocument(ValueError):  # noqa: N818 - named as the other refusals are
    """A document that is not as it should be; the message says where."""


class PairAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a queue pair is reached. `qpn` and `psn` have 24 bits, `lid` 16. `traffic_class`: what
    the IP header of packets to it is to have, which is how networks know RDMA. `reads`: of how many
    READs at a time it can be the target."""

    qpn: Annotated[int, Meta(ge=0, lt=1 << 24)]
    psn: Annotated[int, Meta(ge=0, lt=1 << 24)]
    gid: Annotated[str, Meta(max_length=45)]
    mtu: Literal[256, 512, 1024, 2048, 4096]
    link: Literal["ethernet", "infiniband"]
    lid: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    traffic_class: Annotated[int, Meta(ge=0, lt=1 << 8)] = 0
    reads: Annotated[int, Meta(ge=1, lt=1 << 8)] = 1

    def __post_init__(self) -> None:
        try:
            address = ipaddress.IPv6Address(self.gid)
        except ValueError:
            raise ValueError("gid is not an IPv6 address") from None
        if "%" in self.gid:
            raise ValueError("gid is not an IPv6 address alone")
        # Whoever connects to one of these sends to all, or to itself.
        one = address.ipv4_mapped or address
        if one.is_multicast or one.is_loopback or one.is_unspecified or one == _BROADCAST:
            raise ValueError("gid is no single host's")

    def is_same_pair(self, other: "PairAddress") -> bool:
        """Whether both are addresses of one queue pair."""
        gids = {ipaddress.IPv6Address(each.gid) for each in (self, other)}
        return len(gids) == 1 and (self.qpn, self.lid) == (other.qpn, other.lid)


class Prepare(Struct, frozen=True, forbid_unknown_fields=True):
    """A client's queue pair, which waits for the gateway's."""

    address: PairAddress


class Prepared(Struct, frozen=True):
    """The session that came of it, and the gateway's queue pair."""

    session: str
    address: PairAddress
    idle_seconds: float


class Session(Struct, frozen=True, forbid_unknown_fields=True):
    """The session that `ready` and `cancel` speak of."""

    session: Annotated[str, Meta(pattern=f"^[0-9a-f]{{{SESSION_DIGITS}}}$")]


class Row(Struct, frozen=True, omit_defaults=True):
    """One object of a batch: `length` bytes from `offset` on in the memory, or why not. `range`
    is a Content-Range."""

    status: int
    offset: int
    length: int
    etag: str = ""
    last_modified_ms: int = 0
    range: str = ""
    code: str = ""
    message: str = ""


class Table(Struct, frozen=True):
    """What a batch brought, in the order asked. `bytes` were written in all."""

    objects: list[Row]
    bytes: int
    failed: int


def read_document(kind: type[Document], raw: bytes) -> Document:
    """A document of that kind. BadDocument."""
    if len(raw) > DOCUMENT_BYTES:
        raise BadDocument(f"it is longer than {DOCUMENT_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadDocument(str(error)[:300]) from None
