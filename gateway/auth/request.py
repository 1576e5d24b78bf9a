"""A request's head as signatures and routes need it: exactly what was on the wire."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from gateway.errors import InvalidURI

_Value = TypeVar("_Value")


class _remembered(Generic[_Value]):  # noqa: N801 - a decorator
    """functools.cached_property without the lock that Python 3.11 still takes."""

    def __init__(self, work_out: Callable[[Any], _Value]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__

    def __get__(self, head: Any, _: type) -> _Value:
        value = head.__dict__[self._name] = self._work_out(head)
        return value


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

    @classmethod
    def plain(
        cls,
        method: str,
        path: str,
        query: str,
        headers: tuple[tuple[str, str], ...],
        fields: Mapping[str, str],
    ) -> Self:
        """A head whose reader has `headers` by name already, as `fields`, each of them once."""
        head = cls(method, path, query, headers)
        head.__dict__["fields"] = fields
        return head

    @_remembered
    def fields(self) -> Mapping[str, str]:
        """Headers by name; the values of one that came several times are joined by commas."""
        fields = dict(self.headers)
        if len(fields) < len(self.headers):
            fields.clear()
            for name, value in self.headers:
                fields[name] = f"{fields[name]},{value}" if name in fields else value
        return fields

    def header(self, name: str) -> str | None:
        """The first value of the header with this lower-case name."""
        value = self.fields.get(name)
        if value is not None and len(self.fields) < len(self.headers):
            return next(value for known, value in self.headers if known == name)
        return value

    @_remembered
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
