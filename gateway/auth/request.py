"""A request's head as signatures and routes need it: exactly what was on the wire."""

from collections.abc import Mapping
from functools import cached_property
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from gateway.errors import InvalidURI


class RequestHead(Struct, frozen=True, dict=True):
    """Method, target and headers of one request, nothing decoded or normalised.

    `path` is percent-encoded and without the query; `query` is the raw query string, "" if there is
    none. `headers` have lower-case names and stripped values, in wire order, duplicates kept. Bytes
    that are not UTF-8 are surrogate escapes, so that nothing is lost.
    """

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The first value of each header."""
        return dict(reversed(self.headers))

    def header(self, name: str) -> str | None:
        """The first value of the header with this lower-case name."""
        return self.fields.get(name)

    @cached_property
    def query_pairs(self) -> tuple[tuple[str, str], ...]:
        """Decoded query parameters in wire order, blank values kept; a "+" stays a "+".

        InvalidURI where a parameter is not UTF-8.
        """
        pairs = []
        for piece in self.query.split("&"):
            if piece:
                name, _, value = piece.partition("=")
                pairs.append((_decode(name), _decode(value)))
        return tuple(pairs)


def _decode(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidURI from error
