"""Listings over packs: the index speaks for its prefix, the origin for everything else. Pure.

ours  ──────────┤ prefix of a pack ├───────────        keys in order of bytes
origin's page   │  PackView.walk   │  origin's page, after the prefix
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

from gateway.model.objects import ListPage, ObjectEntry
from gateway.tiers.packed.view import Listed, PackView, Unsure
from packer.format.index import beyond, common_prefix

# Greater than nearly every key that begins with what it is put behind: no UTF-8 goes further. What
# begins with both is left out a page at a time.
LAST = "\U0010ffff"

# What is known by now of keys that the log is unsure of; None: not there.
Resolved = Mapping[str, ObjectEntry | None]


class Piece(Struct, frozen=True):
    """A page of one of the lists: keys and common prefixes by themselves, in order. `until`: all up
    to there is in it and more may follow; None at the end. `unsure`: the origin must be asked of
    these before the page can be made."""

    objects: tuple[ObjectEntry, ...] = ()
    prefixes: tuple[str, ...] = ()
    until: str | None = None
    unsure: tuple[str, ...] = ()


def piece(
    view: PackView,
    prefix: str,
    delimiter: str,
    after: str,
    limit: int,
    resolved: Resolved,
    changing: Collection[str] = (),
) -> Piece:
    """Up to `limit` keys and common prefixes beyond `after`, of those that begin with `prefix` and
    belong to the pack. `changing`: keys that are being written just now."""
    unsettled = frozenset(key.encode() for key in changing)
    raw_prefix = max(prefix, view.manifest.prefix, key=len).encode()
    raw_delimiter, raw_after = delimiter.encode(), after.encode()
    asked = prefix.encode()
    objects: list[ObjectEntry] = []
    prefixes: list[str] = []
    unsure: list[str] = []
    last = after
    start: bytes | None = max(raw_prefix, raw_after)
    while start is not None:
        begin, start = start, None
        for key, listed in view.walk(begin, unsettled):
            if not key.startswith(raw_prefix):
                break
            common = common_prefix(key, asked, raw_delimiter)
            if key <= raw_after or (common is not None and common <= raw_after):
                if common is not None and raw_after.startswith(common):
                    start = beyond(common)
                    break
                continue
            entry = _sure(listed, resolved)
            if entry is None:
                if isinstance(listed, Unsure) and listed.key not in resolved:
                    unsure.append(listed.key)
                    if len(unsure) >= limit:
                        # They may fill the page.
                        return Piece(unsure=tuple(unsure))
                continue
            if len(objects) + len(prefixes) >= limit:
                return Piece(tuple(objects), tuple(prefixes), last, tuple(unsure))
            if common is None:
                objects.append(entry)
                last = entry.key
            else:
                last = common.decode()
                prefixes.append(last)
                start = beyond(common)
                break
    return Piece(tuple(objects), tuple(prefixes), None, tuple(unsure))


def _sure(listed: Listed, resolved: Resolved) -> ObjectEntry | None:
    return resolved.get(listed.key) if isinstance(listed, Unsure) else listed


def merged(pieces: list[Piece], limit: int) -> ListPage:
    """One page of lists that share no keys, but may share common prefixes."""
    found: dict[str, ObjectEntry | None] = {}
    for one in pieces:
        found |= {entry.key: entry for entry in one.objects}
        found |= dict.fromkeys(one.prefixes)
    names = sorted(found, key=str.encode)
    ends = [one.until for one in pieces if one.until is not None]
    if ends:
        # Beyond the first page to end, what comes next is not known of that list.
        horizon = min(end.encode() for end in ends)
        names = [name for name in names if name.encode() <= horizon]
    more = bool(ends) or len(names) > limit
    names = names[:limit]
    return ListPage(
        objects=tuple(entry for name in names if (entry := found[name]) is not None),
        common_prefixes=tuple(name for name in names if found[name] is None),
        next_after=names[-1] if more and names else None,
    )


def outside(page: ListPage, hidden: list[str]) -> Piece:
    """What of an origin's page belongs to no prefix in `hidden`."""
    return Piece(
        tuple(entry for entry in page.objects if not _inside(entry.key, hidden)),
        tuple(name for name in page.common_prefixes if not _inside(name, hidden)),
        page.next_after,
    )


def skipped(after: str, hidden: list[str]) -> str:
    """Where the origin's listing goes on: beyond the hidden prefix that it has come to."""
    for prefix in hidden:
        if after.startswith(prefix):
            return max(after, prefix + LAST, key=str.encode)
    return after


def _inside(name: str, hidden: list[str]) -> bool:
    return any(name.startswith(prefix) for prefix in hidden)
