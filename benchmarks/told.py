"""The cluster's results as Markdown, and what of them is wrong. Pure."""

from collections.abc import Mapping, Sequence

from benchmarks.coldstart import Start
from benchmarks.coordinator import Load
from benchmarks.crowd import Crowd, Entry
from benchmarks.near import Asked, Settling, Turns
from benchmarks.report import number

AWARE = "feedrack"
UNAWARE = "feedrack, `rack_aware = false`"
STRANGERS = "feedrack, six nodes without a cluster"
JUICEFS = "six JuiceFS gateways"
_MIB = 1024**2
# Of bytes: what the origin says beside bodies.
_TOLERANCE = 0.005


def cold(starts: Sequence[Start]) -> list[str]:
    """A table for each kind of objects."""
    lines = [
        "## Cold start: 96 readers, 16 a node, all at once",
        "",
        "Every object is asked for by four readers of each node at the same moment. A piece is "
        "what one GET fetches: a chunk of 8 MiB, a block of 4 MiB (JuiceFS), a small object. The "
        "origin counts its GETs and bytes itself (HEADs, which it counts among GETs, are those the "
        "nodes tell of). All bytes are over those of the objects: from the origin, from other "
        "racks as the nodes count, and into racks as the kernel counts (the origin's, other "
        "racks', Redis's, headers). Without a cluster six nodes fetch everything six times.",
        "",
    ]
    for kind in dict.fromkeys(start.kind for start in starts):
        lines += [
            f"{kind.said}, {number(kind.all_bytes / _MIB)} MiB",
            "",
            "| | pieces | origin GETs | GETs ÷ pieces | origin bytes | from other racks "
            "| into racks | HEADs | seconds |",
            f"| --- |{' ---: |' * 8}",
        ]
        lines += [
            f"| {each.way} | {each.pieces:,} | {each.gets:,} | {each.gets_a_piece:.2f} "
            f"| {each.times_read:.2f} | {_times(each.times_crossed)} "
            f"| {_times(each.times_entered)} | {each.heads:,} | {each.seconds:.1f} |"
            for each in starts
            if each.kind == kind
        ]
        lines.append("")
    return lines


def warm(found: Sequence[Turns]) -> list[str]:
    """Both nodes beside each other."""
    lines = [
        "## Warm reads",
        "",
        "One connection. The node that holds nothing has it from its rack's other node each time.",
        "",
        "| size | read through the node that | p50 ms | p99 ms | CPU µs/request | from the rack "
        "| CPU ÷ holder's |",
        f"| --- | --- |{' ---: |' * 5}",
    ]
    holders = {each.size: each for each in found if each.where == "holds it"}
    for each in found:
        over = each.cpu_us / max(holders[each.size].cpu_us, 1e-9)
        lines.append(
            f"| {each.size} | {each.where} | {number(each.p50_ms)} | {number(each.p99_ms)} "
            f"| {number(each.cpu_us)} | {100 * each.tier_share('rack'):.1f} % | {over:.2f} |"
        )
    return [*lines, ""]


def puts(found: Sequence[Turns], settlings: Sequence[Settling]) -> list[str]:
    """Writes alone and in clusters, and what settling takes of them."""
    lines = [
        "## Writes",
        "",
        "PUTs one after the other through one node, through to the origin; medians of the rounds.",
        "",
        "| size | through | p50 ms | p99 ms | p50 ÷ alone | CPU µs/request |",
        f"| --- | --- |{' ---: |' * 4}",
    ]
    alone: dict[str, Turns] = {}
    for each in found:
        first = alone.setdefault(each.size, each)
        lines.append(
            f"| {each.size} | {each.where} | {number(each.p50_ms)} | {number(each.p99_ms)} "
            f"| {each.p50_ms / max(first.p50_ms, 1e-9):.2f} | {number(each.cpu_us)} |"
        )
    lines += [
        "",
        "Until every member had heard (`feedrack_change_seconds`), beside the body's way:",
        "",
        "| members | writes | mean ms | half within ms | 99 % within ms |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.members} | {each.count:,} | {number(each.mean_ms)} "
        f"| {number(each.within_ms(0.5))} | {number(each.within_ms(0.99))} |"
        for each in settlings
    ]
    return [*lines, ""]


def redis(starts: Sequence[Start], idle: Load, asked: Sequence[Asked]) -> list[str]:
    """What Redis is asked for, beyond what six idle members ask of it."""
    lines = [
        "## What Redis is asked",
        "",
        "By its own count, commands within scripts included; bytes in both directions. *Beyond "
        "idle* is without what six idle members ask in as long (renewals, watching).",
        "",
        "| | for | commands | bytes | beyond idle: commands | bytes | CPU µs |",
        f"| --- | --- |{' ---: |' * 5}",
        f"| six idle members | a second | {number(idle.executed / idle.seconds)} "
        f"| {number(idle.moved_bytes / idle.seconds)} | | | |",
    ]
    for start in starts:
        if start.redis is not None and start.way == AWARE:
            what = f"cold start, {start.kind.name} objects"
            lines.append(_row(what, "a piece", start.pieces, start.redis, idle))
    lines += [_row(each.what, "each", each.count, each.busy, each.idle) for each in asked]
    return [*lines, ""]


def _row(what: str, per: str, count: int, busy: Load, idle: Load) -> str:
    beyond = busy.beyond(idle)
    return (
        f"| {what} | {per} | {_each(busy.executed, count)} | {_each(busy.moved_bytes, count)} "
        f"| {_each(beyond.executed, count)} | {_each(beyond.moved_bytes, count)} "
        f"| {_each(beyond.cpu_seconds * 1e6, count)} |"
    )


def memory(keys: Mapping[str, Mapping[str, int]], found: Sequence[Entry]) -> list[str]:
    """What keys take after the cold start, and what entries of the directory do by the thousand."""
    lines = [
        "## What Redis holds",
        "",
        "After the cold start of six nodes (`MEMORY USAGE`):",
        "",
        "| keys | count | bytes each |",
        "| --- | ---: | ---: |",
    ]
    lines += [
        f"| `{name}` | {sizes['count']:,} | {sizes['bytes'] / sizes['count']:,.0f} |"
        for name, sizes in sorted(keys.items())
    ]
    lines += [
        "",
        "Entries of the directory, written by the thousand (`used_memory`, everything in it):",
        "",
        "| an entry for | nodes | entries | bytes each |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.what} | {each.fields} | {each.entries:,} | {each.bytes_each:,.0f} |"
        for each in found
    ]
    return [*lines, ""]


def crowds(found: Sequence[Crowd]) -> list[str]:
    """Redis under many members."""
    lines = [
        "## Redis under many members",
        "",
        "Real memberships, many in one process, over one Redis; its own CPU and counts. *One at a "
        "time*: a write begins when the one before has settled. *Together*: four writes of each of "
        "20 members at one moment, for which a member answers each writer once.",
        "",
        "| members | KiB a member | renewals/s | CPU µs a renewal | a write, one at a time: "
        "commands | bytes | CPU µs | CPU µs ÷ members | together: CPU µs a write |",
        f"|{' ---: |' * 9}",
    ]
    for each in found:
        written = each.written.beyond(each.idle)
        lines.append(
            f"| {each.members} | {number(each.memory_a_member / 1024)} "
            f"| {number(each.renewals_a_second)} "
            f"| {number(each.renewal_us)} | {_each(written.executed, each.writes)} "
            f"| {_each(written.moved_bytes, each.writes)} | {number(each.write_us)} "
            f"| {number(each.write_us / each.members)} | {number(each.write_together_us)} |"
        )
    return [*lines, ""]


def by_kind(sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Keys of the cluster by what they are for: how many, and how many bytes they take."""
    found: dict[str, dict[str, int]] = {}
    for key, size_bytes in sizes.items():
        parts = key.partition("}:")[2].split(":")
        deep = 2 if parts[0] in ("dir", "pf") else 1
        name = ":".join(parts[:deep]) + (":…" if len(parts) > deep else "")
        each = found.setdefault(name, {"count": 0, "bytes": 0})
        each["count"] += 1
        each["bytes"] += size_bytes
    return found


def wrong(starts: Sequence[Start], turns: Sequence[Turns]) -> list[str]:
    """What must not be: failures, and anything that the origin gave a cluster twice."""
    found = [
        f"{each.failures} reads failed, {each.way}, {each.kind.name}: {each.first_failure}"
        for each in starts
        if each.failures
    ]
    found += [
        f"{each.way}: the origin gave {each.kind.name} objects {each.gets_a_piece:.3f} times "
        f"by GETs and {each.times_read:.3f} times by bytes, instead of once"
        for each in starts
        if each.way in (AWARE, UNAWARE)
        and (each.gets != each.pieces or abs(each.times_read - 1) > _TOLERANCE)
    ]
    found += [
        f"{each.failures} requests failed, {each.size}, {each.where}"
        for each in turns
        if each.failures
    ]
    return found


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _each(total: float, count: int) -> str:
    value = total / max(count, 1)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
