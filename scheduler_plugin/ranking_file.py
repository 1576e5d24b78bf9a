"""The file that `site/job_submit.lua` reads: one small text a dataset. Pure.

    feedrack-ranking 1 EXPIRES ARRAYS DEFAULT COMMON
    dataset s3://train/imagenet
    users 0 1001                                  or *; those whom it is for
    groups 100
    [main] 32                                     a partition, its hosts; * is all of them together
    n4 1 64 rack2                                 feature, hosts, CPUs of the largest, its rack or -
    rack2 16 64 -
    with s3://train/labels                        the same for several datasets named together,
    users 0 1001                                  the others in the order in which they are named
    groups 100
    [main] 32
    …
    end

EXPIRES is in seconds since 1970; ARRAYS says whether arrays may have a preference, yes or no;
DEFAULT is the partition of jobs that name none, or -; COMMON is a feature that all nodes have, -
where none is needed, ! where there is none. Hosts are those that are usable.

It is written whole and put in place by rename; what does not end with `end` is not believed.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from scheduler_plugin.dataset import Dataset
from scheduler_plugin.ranking import ALL_PARTITIONS, Place, Ranking

MOST_BYTES = 16_384
# Beyond this many, none are listed: the file is opened inside the controller.
MOST_READERS = 1000

_FEATURE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PARTITION = re.compile(r"[^\s,\[\]]{1,128}")
_HEAD = re.compile(r"feedrack-ranking 1 (\d{1,18}) ")
_SECTION = re.compile(r"\[(.+)\] \d+")


class Readers(Struct, frozen=True):
    """Whom a dataset may be told of. `everybody`, or these users and groups by number."""

    everybody: bool = False
    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()

    def both(self, other: "Readers") -> "Readers":
        """Whoever may be told of both."""
        if self.everybody:
            return other
        if other.everybody:
            return self
        # Whether somebody belongs to a group cannot be known here: by group only who is listed so
        # in both.
        return Readers(users=self.users & other.users, groups=self.groups & other.groups)

    def knows(self, user: int, group: int) -> bool:
        return self.everybody or user == 0 or user in self.users or group in self.groups


class Entry(Struct, frozen=True):
    """A ranking and whom it is for. `others`: the datasets beside the file's own."""

    ranking: Ranking
    readers: Readers
    others: tuple[Dataset, ...] = ()


class Rules(Struct, frozen=True):
    """What holds for all datasets: see above. `common_feature` "": there is none; `common_needed`:
    whether this release needs one; `sizes`: the hosts of each partition."""

    arrays: bool = True
    default_partition: str = ""
    common_feature: str = ""
    common_needed: bool = True
    sizes: Mapping[str, int] = {}


class Written(Struct, frozen=True):
    """What a file says: when it runs out, in seconds since 1970, and by partition the places of its
    own dataset, the best first."""

    expires: int
    places: Mapping[str, Sequence[str]]


def read(content: bytes) -> Written | None:
    """None where it is no ranking, or a torn one."""
    lines = _text(content).split("\n")
    head = _HEAD.match(lines[0])
    if head is None or lines[-2:] != ["end", ""]:
        return None
    places: dict[str, list[str]] = {}
    section: list[str] | None = None
    for line in lines[1:-2]:
        if line.startswith("with "):
            break
        found = _SECTION.fullmatch(line)
        if found is not None:
            section = places.setdefault(found[1], [])
        elif section is not None:
            section.append(line.partition(" ")[0])
    return Written(int(head[1]), places)


def render(
    dataset: Dataset,
    entries: Sequence[Entry],
    *,
    expires: int,
    rules: Rules,
) -> bytes:
    """The file's content, at most MOST_BYTES; the first entry is the dataset's own. What does not
    fit is left out: later combinations first, then later partitions."""
    default = rules.default_partition
    if not _PARTITION.fullmatch(default):
        default = "-"
    head = (
        f"feedrack-ranking 1 {expires:d} {'yes' if rules.arrays else 'no'} {default} "
        f"{_common(rules)}\n"
        f"dataset {dataset.text}\n"
    )
    pieces = [_raw(head)]
    room = MOST_BYTES - len(pieces[0]) - len(b"end\n")
    for number, entry in enumerate(entries):
        piece = b""
        if number > 0:
            piece = _raw(f"with {','.join(each.text for each in entry.others)}\n")
        piece += _raw(_readers(entry.readers))
        if len(piece) > room:
            break
        for section in _sections(entry.ranking.places, default, rules.sizes):
            if len(piece) + len(section) > room:
                break
            piece += section
        pieces.append(piece)
        room -= len(piece)
    return b"".join((*pieces, b"end\n"))


def _common(rules: Rules) -> str:
    if _FEATURE.fullmatch(rules.common_feature):
        return rules.common_feature
    return "!" if rules.common_needed else "-"


def _readers(readers: Readers) -> str:
    if readers.everybody:
        return "users *\ngroups\n"
    if len(readers.users) + len(readers.groups) > MOST_READERS:
        return "users 0\ngroups\n"
    users = " ".join(f"{each:d}" for each in sorted({0, *readers.users}))
    groups = " ".join(f"{each:d}" for each in sorted(readers.groups))
    return f"users {users}\ngroups {groups}\n"


def _sections(
    places: Mapping[str, Sequence[Place]], default: str, sizes: Mapping[str, int]
) -> list[bytes]:
    """The default partition first, then all together, then the others by name."""
    names = sorted(places, key=lambda name: (name != default, name != ALL_PARTITIONS, name))
    return [
        _raw(f"[{name}] {sizes.get(name, 0):d}\n" + "".join(map(_line, places[name])))
        for name in names
        if name == ALL_PARTITIONS or _PARTITION.fullmatch(name)
    ]


def _line(place: Place) -> str:
    if not _FEATURE.fullmatch(place.feature):
        return ""
    rack = place.rack if place.rack is not None and _FEATURE.fullmatch(place.rack) else "-"
    return f"{place.feature} {place.hosts:d} {place.cpus:d} {rack}\n"


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
