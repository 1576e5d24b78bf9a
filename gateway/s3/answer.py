"""What a handler gives back: status, headers, and bytes at hand or to come."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from msgspec import Struct, field

from gateway.tiers.protocol import FileRegion

Block = bytes | bytearray | memoryview
# A list is sent as one block, joined with what frames it on its way.
Piece = Block | list[Block] | FileRegion


class Stream(Protocol):
    """Bytes to come: an object's, or a relayed answer's."""

    def pieces(self, *, files: bool) -> AsyncIterator[Piece]:
        """The bytes in order, each piece good until the next is asked for; regions of files only
        where `files` says so."""
        ...

    async def close(self) -> None: ...


class Answer(Struct, kw_only=True):
    """One HTTP answer, header names in lower case.

    `stream` gives exactly `length_bytes` bytes (None: not known beforehand). An answer without a
    stream has `body`; `length_bytes` of one without either is what a HEAD announces. `tier` is
    where an object's first byte comes from, `served` counts its bytes by tier as they go out.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Stream | None = None
    length_bytes: int | None = None
    tier: str | None = None
    served: Mapping[str, int] = field(default_factory=dict)

    async def close(self) -> None:
        if self.stream is not None:
            await self.stream.close()


def xml_answer(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """An answer whose body is an XML document."""
    return Answer(
        status=status, headers={"content-type": "application/xml", **(headers or {})}, body=body
    )


def empty_answer(status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer without a body."""
    return Answer(status=status, headers=headers or {})
