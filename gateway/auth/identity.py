"""Who asks, and how what they send is vouched for: what authentication comes to."""

from typing import Literal

from msgspec import Struct

from gateway.auth.sigv4_chunks import ChunkSigner
from gateway.auth.tenants import Tenant

PayloadKind = Literal[
    "unsigned", "single", "signed-chunks", "signed-chunks-trailer", "unsigned-chunks-trailer"
]


class PayloadSigning(Struct, frozen=True):
    """How the body is vouched for. `sha256_hex` with "single", `chunks` with signed chunks."""

    kind: PayloadKind
    sha256_hex: str | None = None
    chunks: ChunkSigner | None = None


class Identity(Struct, frozen=True):
    """Who asks (`tenant` None is the anonymous), how the body is vouched for, and the names of the
    headers that are."""

    tenant: Tenant | None
    payload: PayloadSigning
    signed_headers: frozenset[str] = frozenset()


UNSIGNED = PayloadSigning("unsigned")
ANONYMOUS = Identity(None, UNSIGNED)
