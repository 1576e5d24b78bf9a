"""How RDMA is held against HTTP: by turns, each round beside HTTP's of that round and kernel."""

from benchmarks.rdma import Round, Way, table, take_turns


def _round(cpu_seconds: float) -> Round:
    return Round(
        bytes=1024**3,
        seconds=1.0,
        gateway_cpu_seconds=cpu_seconds,
        client_cpu_seconds=0.0,
        machine_cpu_seconds=cpu_seconds,
        copied_bytes=0.0,
    )


def test_all_ways_take_turns() -> None:
    taken: list[str] = []

    def take(name: str) -> Round:
        taken.append(name)
        return _round(len(taken))

    names = ("one", "two", "http")
    ways = take_turns(
        [(Way(name=name, depth=1, rounds=[]), lambda name=name: take(name)) for name in names],  # type: ignore[misc]
        rounds=3,
    )
    assert taken == [*names] * 3
    assert [each.gateway_cpu_seconds for each in ways[2].rounds] == [3, 6, 9]


def test_a_way_is_held_against_the_same_round_on_its_own_kernel() -> None:
    def ways(kernel: str, rdma: list[float], http: list[float]) -> list[Way]:
        return [
            Way(name="rdma", depth=4, rounds=[*map(_round, rdma)], kernel=kernel),
            Way(name="http", depth=0, rounds=[*map(_round, http)], kernel=kernel),
        ]

    # The machine was slower in the second round; the median of each alone would say 3 and 1.
    rows = table(
        ways("Linux 6.1", [2, 12, 3], [1, 6, 1]) + ways("Linux 6.12", [1, 1, 1], [4, 4, 4])
    )
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]
    assert [(row[0], row[1], row[-1]) for row in cells] == [
        ("Linux 6.1", "rdma", "2.00"),
        ("Linux 6.1", "http", "1.00"),
        ("Linux 6.12", "rdma", "0.25"),
        ("Linux 6.12", "http", "1.00"),
    ]
