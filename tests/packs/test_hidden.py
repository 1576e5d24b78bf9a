"""Reserved keys are in no listing, and pages are as full as if there were none."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import TierUnavailable
from gateway.model.objects import UploadEntry
from gateway.tiers.packed.hidden import Marker, Rows, shown

Row = tuple[str, str]
T = TypeVar("T")

NAMES = st.text(alphabet=".feedrack/0a\U0010ffff", max_size=14)
KEYS = st.lists(
    NAMES.filter(bool)
    | NAMES.map(lambda name: f".feedrack/{name}")
    | st.sampled_from([".feedrack", ".feedrack/", ".feedrack0", ".feedrack/packs/x", ".fewer"]),
    max_size=24,
    unique=True,
)


class Listed:
    """A bucket of keys with one or more versions (or uploads) each, listed as S3 does it."""

    def __init__(self, keys: Sequence[str], copies: int = 1) -> None:
        ordered = sorted(keys, key=str.encode)
        self.rows = [(key, str(copy)) for key in ordered for copy in range(copies)]
        self.questions = 0

    def folded(self, prefix: str, delimiter: str) -> list[Row]:
        """All rows; a common prefix has no id."""
        found: list[Row] = []
        for key, copy in self.rows:
            if not key.startswith(prefix):
                continue
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            row = (key, copy) if at < 0 else (key[: at + len(delimiter)], "")
            if row not in found:
                found.append(row)
        return found

    async def ask(
        self, prefix: str, delimiter: str, marker: Marker, limit: int
    ) -> Rows[UploadEntry]:
        self.questions += 1
        rows = [
            row
            for row in self.folded(prefix, delimiter)
            if _behind(row, marker)
            # A common prefix is told where a key below it lies behind the marker.
            or (not row[1] and row[0] != marker.key and self._below(row[0], marker))
        ]
        page, rest = rows[:limit], rows[limit:]
        return Rows(
            [UploadEntry(key=key, upload_id=copy, initiated_ms=0) for key, copy in page if copy],
            [name for name, copy in page if not copy],
            Marker(*page[-1]) if rest else None,
        )

    def _below(self, name: str, marker: Marker) -> bool:
        return any(
            row[0].startswith(name) and _behind(row, marker) and not marker.key.startswith(name)
            for row in self.rows
        )


def _behind(row: Row, marker: Marker) -> bool:
    if row[0] == marker.key and marker.id:
        return row[1] > marker.id
    return row[0].encode() > marker.key.encode()


def pages(listed: Listed, prefix: str, delimiter: str, limit: int) -> Iterator[list[Row]]:
    marker: Marker | None = Marker()
    while marker is not None:
        rows: Rows[Any] = asyncio.run(shown(listed.ask, prefix, delimiter, marker, limit))
        page = [(entry.key, entry.upload_id) for entry in rows.entries]
        yield sorted(page + [(name, "") for name in rows.prefixes], key=lambda row: row[0].encode())
        marker = rows.following


@given(
    keys=KEYS,
    copies=st.integers(1, 3),
    prefix=st.sampled_from(["", ".", ".f", ".feedrack", ".fe", "a", "0", ".feedrack0"]) | NAMES,
    delimiter=st.sampled_from(["", "/", ".", "e", "k/", "feed", ".feedrack/"]),
    limit=st.integers(1, 7),
)
@example([".feedrack/a", ".feedrack/b", "a"], 1, "", "", 1)
@example([".feedrack/a", ".feedrack/b", "a"], 1, "", "/", 1)
@example([".a", ".feedrack/a", ".feedrack/\U0010ffffa", "a"], 2, "", "", 2)
@example([".feedrack/a", ".fewer"], 1, "", "e", 1)
def test_the_pages_together_are_the_listing_without_the_reserved_keys(
    keys: list[str], copies: int, prefix: str, delimiter: str, limit: int
) -> None:
    if prefix.startswith(".feedrack/"):
        prefix = ""
    listed = Listed(keys, copies)
    others = Listed([key for key in keys if not key.startswith(".feedrack/")], copies)
    found = list(pages(listed, prefix, delimiter, limit))
    assert [row for page in found for row in page] == others.folded(prefix, delimiter)
    assert all(len(page) == limit for page in found[:-1])
    assert len(found[-1]) <= limit


def test_thousands_of_reserved_keys_cost_a_question_or_two() -> None:
    keys = [f".feedrack/packs/{number:05}" for number in range(5_000)]
    listed = Listed([*keys, ".a", "b", "c"])
    found = list(pages(listed, "", "", 2))
    assert found == [[(".a", "0"), ("b", "0")], [("c", "0")]]
    assert listed.questions == 3


def test_a_bucket_of_reserved_keys_alone_is_an_empty_page() -> None:
    listed = Listed([f".feedrack/{number}" for number in range(50)])
    assert list(pages(listed, "", "", 3)) == [[]]
    assert list(pages(listed, "", "/", 3)) == [[]]


def test_another_prefix_costs_nothing() -> None:
    listed = Listed([".feedrack/x", "p/a", "p/b"])
    assert list(pages(listed, "p/", "/", 5)) == [[("p/a", "0"), ("p/b", "0")]]
    assert listed.questions == 1


async def test_an_origin_that_does_not_go_on_is_no_endless_loop() -> None:
    async def stuck(prefix: str, delimiter: str, marker: Marker, limit: int) -> Rows[UploadEntry]:
        return Rows((), [".feedrack/"], Marker(".feedrack/"))

    with pytest.raises(TierUnavailable, match="does not go on"):
        await shown(stuck, "", "/", Marker(), 5)
