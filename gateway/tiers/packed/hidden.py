"""Listings of versions and of uploads without those under `.feedrack/`, in pages as full as those
with them. (`listing.py` does the same for objects, beside what it has to do there anyway.)

The reserved keys lie together in the order of keys, and there may be thousands of them: a page that
comes to them goes on behind them, with one question more. A common prefix that stands for reserved
keys alone is not shown; one that stands for others too (it is shorter than `.feedrack/`) is, which
takes a look at what else it stands for.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import TierUnavailable
from gateway.model.objects import (
    ObjectEntry,
    UploadEntry,
    UploadPage,
    VersionEntry,
    VersionPage,
)
from gateway.model.reserved import RESERVED, is_reserved
from gateway.tiers.packed.listing import LAST
from gateway.tiers.protocol import Origin

Entry = TypeVar("Entry", ObjectEntry, VersionEntry, UploadEntry)

# Behind all reserved keys but those that begin with this very character, which are dropped singly.
_BEHIND = RESERVED + LAST


class Marker(NamedTuple):
    """What a page begins behind: a key or common prefix, and of the key which version or upload."""

    key: str = ""
    id: str = ""


class Rows(NamedTuple, Generic[Entry]):
    """A page of any listing. `following`: where to go on, None where there is nothing more."""

    entries: Sequence[Entry]
    prefixes: Sequence[str]
    following: Marker | None


# Asks for a page: prefix, delimiter, marker, limit.
Ask = Callable[[str, str, Marker, int], Awaitable[Rows[Entry]]]


async def list_versions(
    origin: Origin,
    bucket: str,
    *,
    prefix: str,
    delimiter: str,
    key_marker: str,
    version_id_marker: str,
    limit: int,
) -> VersionPage:
    """As `Origin.list_versions`, without the reserved keys."""

    async def ask(prefix: str, delimiter: str, marker: Marker, limit: int) -> Rows[VersionEntry]:
        page = await origin.list_versions(
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=marker.key,
            version_id_marker=marker.id,
            limit=limit,
        )
        following = _marker(page.next_key_marker, page.next_version_id_marker)
        return Rows(page.versions, page.common_prefixes, following)

    if is_reserved(prefix):
        await origin.head_bucket(bucket)
        return VersionPage()
    rows = await shown(ask, prefix, delimiter, Marker(key_marker, version_id_marker), limit)
    key, version_id = rows.following or (None, None)
    return VersionPage(
        versions=tuple(rows.entries),
        common_prefixes=tuple(rows.prefixes),
        next_key_marker=key,
        next_version_id_marker=version_id or None,
    )


async def list_uploads(
    origin: Origin,
    bucket: str,
    *,
    prefix: str,
    delimiter: str,
    key_marker: str,
    upload_id_marker: str,
    limit: int,
) -> UploadPage:
    """As `Origin.list_uploads`, without those of reserved keys."""

    async def ask(prefix: str, delimiter: str, marker: Marker, limit: int) -> Rows[UploadEntry]:
        page = await origin.list_uploads(
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=marker.key,
            upload_id_marker=marker.id,
            limit=limit,
        )
        following = _marker(page.next_key_marker, page.next_upload_id_marker)
        return Rows(page.uploads, page.common_prefixes, following)

    if is_reserved(prefix):
        await origin.head_bucket(bucket)
        return UploadPage()
    rows = await shown(ask, prefix, delimiter, Marker(key_marker, upload_id_marker), limit)
    key, upload_id = rows.following or (None, None)
    return UploadPage(
        uploads=tuple(rows.entries),
        common_prefixes=tuple(rows.prefixes),
        next_key_marker=key,
        next_upload_id_marker=upload_id,
    )


async def shown(
    ask: Ask[Entry], prefix: str, delimiter: str, marker: Marker, limit: int
) -> Rows[Entry]:
    """Up to `limit` rows of what `ask` gives, the reserved ones left out; fewer only at the end, or
    where the origin's own page was short."""
    if not RESERVED.startswith(prefix):
        return await ask(prefix, delimiter, marker, limit)
    entries: list[Entry] = []
    prefixes: list[str] = []
    marker = _behind(marker)
    while True:
        wanted = limit - len(entries) - len(prefixes)
        page = await ask(prefix, delimiter, marker, wanted)
        kept = [entry for entry in page.entries if not is_reserved(entry.key)]
        folded = [name for name in page.prefixes if await stands_for_others(ask, name)]
        entries += kept
        prefixes += folded
        hidden = len(page.entries) + len(page.prefixes) - len(kept) - len(folded)
        if page.following is None or not hidden or len(kept) + len(folded) == wanted:
            return Rows(entries, prefixes, page.following)
        following = _behind(page.following)
        if following == marker:
            raise TierUnavailable(f"the origin's listing does not go on behind {marker.key!r}")
        marker = following


async def stands_for_others(ask: Ask[Entry], common_prefix: str) -> bool:
    """Whether a common prefix stands for any key that is not reserved."""
    if is_reserved(common_prefix):
        return False
    if not RESERVED.startswith(common_prefix):
        return True
    below = await shown(ask, common_prefix, "", Marker(), 1)
    return bool(below.entries)


def _behind(marker: Marker) -> Marker:
    """The marker, or where it lies among the reserved keys, one behind them."""
    among = is_reserved(marker.key) and marker.key.encode() < _BEHIND.encode()
    return Marker(_BEHIND) if among else marker


def _marker(key: str | None, identity: str | None) -> Marker | None:
    return None if key is None else Marker(key, identity or "")
