"""The simulator of affinity keeps its books, and a tiny cluster comes out as counted by hand."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.affinity import quick
from benchmarks.affinity_caches import Caches, node_name
from benchmarks.affinity_links import Flow, Uplink
from benchmarks.affinity_nodes import GPUS, Nodes, bits, members
from benchmarks.affinity_policies import (
    ANY_NODE,
    NODE,
    NODE_WARM,
    NONE,
    RACK,
    Policy,
    Rankings,
    waiting,
)
from benchmarks.affinity_simulation import Outcome, Simulation, Site
from benchmarks.affinity_told import Summary, harm, quantile, summarise, table
from benchmarks.affinity_workload import (
    BY_GPUS,
    DAY,
    GB,
    HOUR,
    PARTS,
    TB,
    Data,
    Demand,
    Work,
    make_datasets,
    make_jobs,
    run_time,
    stretches,
)
from scheduler_plugin.ranking import ALL_PARTITIONS, NODE_GAIN, Held, Layout, rank
from scheduler_plugin.slurm.model import Host

POLICIES = (NONE, RACK, NODE, ANY_NODE, NODE_WARM, waiting(1), waiting(15, warms=True))
SMALL = Site(nodes=7, racks=3, cache_bytes=(0.5 * TB, 2 * TB), uplink=3 * GB)

works = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.sampled_from((1, 2, 4, 8, 16, 32)),
        st.integers(60, 5000),
        st.integers(0, 4),
        st.integers(0, PARTS - 1),
    ),
    max_size=40,
)


def jobs_of(
    told: Sequence[tuple[int, int, int, int, int]], datasets: Sequence[Data] | None = None
) -> list[Work]:
    datasets = datasets or [
        Data(number, size * GB, 0.1 * GB) for number, size in enumerate((10, 90, 400, 1500, 6000))
    ]
    return [
        Work(number, float(at), gpus, float(seconds), datasets[which], first)
        for number, (at, gpus, seconds, which, first) in enumerate(sorted(told))
    ]


def largest_use(outcomes: Sequence[Outcome]) -> int:
    """The most GPUs that any node had in use at once."""
    changes: dict[int, list[tuple[float, int]]] = {}
    for each in outcomes:
        gpus = min(GPUS, each.work.gpus)
        for node in members(each.nodes):
            changes.setdefault(node, []).extend([(each.started, gpus), (each.ended, -gpus)])
    most = 0
    for told in changes.values():
        used = 0
        for _, change in sorted(told):
            used += change
            most = max(most, used)
    return most


@settings(max_examples=60, deadline=None)
@given(told=works, policy=st.sampled_from(POLICIES))
def test_every_job_runs_once_and_all_bytes_are_accounted_for(
    told: list[tuple[int, int, int, int, int]], policy: Policy
) -> None:
    simulation = Simulation(SMALL, policy, jobs_of(told))
    outcomes = simulation.run()
    assert simulation.queue.waiting == 0
    assert set(simulation.nodes.free) == {GPUS}
    assert largest_use(outcomes) <= GPUS
    moved = 0.0
    for each in outcomes:
        work = each.work
        assert each.started >= work.submitted
        assert each.ended == pytest.approx(each.started + work.seconds + each.stalled_seconds)
        assert each.nodes.bit_count() * min(GPUS, work.gpus) == work.gpus
        racks = len(simulation.nodes.racks_of(each.nodes))
        read = each.own_bytes + each.rack_bytes + each.remote_bytes + each.origin_bytes
        assert read == pytest.approx(racks * work.parts.bit_count() * work.data.part_bytes)
        moved += each.remote_bytes + each.origin_bytes + each.again_bytes + each.warmed_bytes
    assert sum(each.moved for each in simulation.uplinks) == pytest.approx(moved, abs=1000)
    for rack, used in enumerate(simulation.caches.used):
        assert -1 < used <= simulation.caches.capacities[rack] + 1
        held = sum(
            simulation.caches.parts(rack, data).bit_count() * data.part_bytes
            for data in {each.work.data.number: each.work.data for each in outcomes}.values()
        )
        assert used == pytest.approx(held, abs=1)


@settings(max_examples=30, deadline=None)
@given(told=works, policy=st.sampled_from(POLICIES))
def test_without_anything_held_every_policy_is_none(
    told: list[tuple[int, int, int, int, int]], policy: Policy
) -> None:
    nothing_kept = Site(nodes=7, racks=3, cache_bytes=(0.0,))
    jobs = jobs_of(told)
    plain = Simulation(nothing_kept, NONE, jobs).run()
    assert Simulation(nothing_kept, policy, jobs).run() == plain


@settings(max_examples=20, deadline=None)
@given(told=works)
def test_with_room_for_all_the_origin_is_asked_for_each_byte_once(
    told: list[tuple[int, int, int, int, int]],
) -> None:
    roomy = Site(nodes=7, racks=3, cache_bytes=(20 * TB,))
    for policy in (NONE, NODE_WARM):
        outcomes = Simulation(roomy, policy, jobs_of(told)).run()
        asked: dict[int, float] = {}
        wanted: dict[int, int] = {}
        for each in outcomes:
            number = each.work.data.number
            asked[number] = asked.get(number, 0.0) + each.origin_bytes + each.warmed_from_origin
            wanted[number] = wanted.get(number, 0) | each.work.parts
        for each in outcomes:
            number = each.work.data.number
            size = wanted[number].bit_count() * each.work.data.part_bytes
            assert asked[number] == pytest.approx(size)


def test_the_same_seed_gives_the_same_and_another_one_other_results() -> None:
    def summaries(seed: int) -> list[Summary]:
        scenario = next(quick(seed, 8.0))
        return [
            summarise(
                scenario, each, Simulation(scenario.site, each, make_jobs(scenario.demand)).run()
            )
            for each in (NODE, waiting(5))
        ]

    assert summaries(1) == summaries(1)
    assert summaries(1) != summaries(2)


def test_two_cold_jobs_share_an_uplink() -> None:
    """Two racks of two nodes. Both jobs read 320 GB at 0.8 GB/s, twice over in 800 s; their rack's
    uplink carries 1 GB/s, so that the first pass takes each 640 s instead of 400."""
    first, second = (Data(number, 320 * GB, 0.1 * GB) for number in range(2))
    jobs = [Work(0, 0.0, 8, 800.0, first), Work(1, 0.0, 8, 800.0, second)]
    site = Site(nodes=4, racks=2, cache_bytes=(1 * TB,), uplink=1 * GB)
    one, other = Simulation(site, NONE, jobs).run()
    assert (one.nodes, other.nodes) == (0b0001, 0b0010)
    assert one.origin_bytes == other.origin_bytes == 320 * GB
    assert one.stalled_seconds == pytest.approx(240)
    assert one.ended == pytest.approx(1040)
    assert other.ended == pytest.approx(1040)


def test_a_job_follows_its_data_or_waits_for_them_or_goes_elsewhere() -> None:
    """The first job leaves its data in rack 0, half of them on each of its nodes. Then two jobs
    fill that rack until second 3,000, and at 2,000 the first comes again."""
    data, other = Data(0, 320 * GB, 0.1 * GB), Data(1, 320 * GB, 0.1 * GB)
    jobs = [
        Work(0, 0.0, 8, 800.0, data),
        Work(1, 1000.0, 8, 2000.0, other),
        Work(2, 1000.0, 8, 2000.0, other),
        Work(3, 2000.0, 8, 800.0, data),
    ]
    # So many racks that none has many of the first homes.
    site = Site(nodes=256, racks=128, cache_bytes=(1 * TB,))
    soft = Simulation(site, NODE, jobs).run()[3]
    assert soft.started == 2000
    assert soft.nodes == 0b0100
    # What has its first home in rack 1 is there already.
    assert soft.remote_bytes + soft.rack_bytes + soft.own_bytes == 320 * GB
    assert soft.remote_bytes > 0
    assert soft.origin_bytes == 0
    short = Simulation(site, waiting(10), jobs).run()[3]
    assert (short.started, short.nodes) == (2600, 0b0100)
    long = Simulation(site, waiting(20), jobs).run()[3]
    assert long.started == 3000
    assert long.nodes in (0b0001, 0b0010)
    assert (long.own_bytes, long.rack_bytes) == (160 * GB, 160 * GB)
    assert long.stalled_seconds == 0


def test_a_job_that_is_warmed_finds_what_came_in_time() -> None:
    """Rack 0 holds half of the dataset. The job is bound to it and waits for 1,000 s; meanwhile the
    other 160 GB come at 0.1 GB/s: ten parts of 10 GB."""
    data, other = Data(0, 320 * GB, 0.1 * GB), Data(1, 10 * GB, 0.02 * GB)
    jobs = [
        Work(0, 0.0, 8, 200.0, data),
        Work(1, 300.0, 8, 1700.0, other),
        Work(2, 300.0, 8, 1700.0, other),
        Work(3, 1000.0, 8, 800.0, data),
    ]
    site = Site(nodes=256, racks=128, cache_bytes=(1 * TB,), warming=0.1 * GB)
    warmed = Simulation(site, waiting(60, warms=True), jobs).run()[3]
    assert warmed.started == 2000
    assert warmed.warmed_bytes == pytest.approx(100 * GB)
    assert warmed.own_bytes + warmed.rack_bytes == 260 * GB
    assert warmed.remote_bytes + warmed.origin_bytes == 60 * GB


def test_a_large_job_is_not_passed_for_ever() -> None:
    small = Data(0, 10 * GB, 0.02 * GB)
    stream = [Work(0, 0.0, 1, 90_000.0, small), Work(1, 10.0, 32, 600.0, small)]
    # Small ones keep coming that would always find a GPU somewhere.
    stream += [Work(2 + each, 20.0 + 60 * each, 8, 3000.0, small) for each in range(1000)]
    large = Simulation(Site(nodes=5, racks=1), NONE, stream).run()[1]
    assert large.started < 3 * HOUR


def test_an_uplink_is_shared_fairly_and_reads_go_first() -> None:
    uplink = Uplink(10.0)
    slow, middle, fast = (Flow(n, 1000.0, rate) for n, rate in enumerate((2.0, 6.0, 8.0)))
    warming = Flow(9, 1000.0, 5.0, is_read=False)
    for each in (fast, warming, slow, middle):
        uplink.add(each, 0.0)
    assert [each.rate for each in (slow, middle, fast, warming)] == [2.0, 4.0, 4.0, 0.0]
    uplink.remove(fast, 10.0)
    assert [each.rate for each in (slow, middle, warming)] == [2.0, 6.0, 2.0]
    assert uplink.moved == 100.0
    assert uplink.next_end() == (10.0 + 960.0 / 6.0, middle)


def test_a_flow_ends_even_where_the_clock_cannot_tell() -> None:
    uplink = Uplink(1e12)
    flow = Flow(1, 1e12 + 7.0, 1e12)
    uplink.add(flow, 600_000.0)
    at = uplink.next_end()
    assert at is not None
    assert uplink.finish(at[0]) == [flow]
    assert uplink.moved == 1e12 + 7.0


@given(
    holding=st.dictionaries(st.integers(0, 2), st.integers(1, (1 << PARTS) - 1), min_size=1),
    number=st.integers(0, 9),
    busy=st.sets(st.integers(0, 23)),
)
def test_what_the_ranking_is_not_told_would_not_be_named(
    holding: dict[int, int], number: int, busy: set[int]
) -> None:
    nodes = Nodes(24, 3)
    nodes.take(bits(busy), 8)
    data = Data(number, 320 * GB, 0.1 * GB)
    caches = Caches([10 * TB] * 3, nodes.sizes)
    for rack, parts in holding.items():
        caches.put(rack, data, parts, 0.0)
    everything = []
    for rack, parts in holding.items():
        for place in range(8):
            count = sum(parts >> part & 1 for part in range((place - number) % 8, PARTS, 8))
            if count:
                everything.append(Held(node_name(rack, place), f"r{rack}", count * 10 * GB))
    layout = Layout.of(
        Host(name, frozenset({name, f"r{node // 8}"}), (), GPUS, nodes.load(node))
        for node in range(24)
        for name in [node_name(node // 8, node % 8)]
    )
    for gain in (0.0, NODE_GAIN):
        told = rank(caches.held(data, 0.0), layout, node_gain=gain)
        assert told == rank(everything, layout, node_gain=gain)
    assert rank(caches.held(data, 0.0, by_node=False), layout) == rank(everything, layout)


@given(
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=20),
)
def test_the_load_that_rankings_know_is_the_nodes(changes: list[tuple[int, int]]) -> None:
    nodes = Nodes(6, 2)
    rankings = Rankings(NODE, nodes, Caches([1 * TB] * 2, nodes.sizes))
    for node, gpus in changes:
        if nodes.free[node] >= gpus:
            nodes.take(1 << node, gpus)
        else:
            nodes.give(1 << node, GPUS - nodes.free[node])
        features = rankings.layout().partitions[ALL_PARTITIONS]
        for rack, its in enumerate(nodes.racks):
            load = sum(nodes.load(each) for each in members(its))
            assert features[f"r{rack}"].load == pytest.approx(load)
        assert features["r1n2"].load == nodes.load(5)


@given(
    free=st.lists(st.integers(0, GPUS), min_size=9, max_size=9),
    gpus=st.sampled_from((1, 2, 4, 8, 16, 24)),
    wanted=st.lists(st.sets(st.integers(0, 8)), max_size=4),
)
def test_a_job_fits_where_it_is_put(free: list[int], gpus: int, wanted: list[set[int]]) -> None:
    nodes = Nodes(9, 3)
    for node, each in enumerate(free):
        nodes.take(1 << node, GPUS - each)
    places = [bits(each) for each in wanted]
    everywhere = bits(range(9))
    found = nodes.find(gpus, everywhere, places)
    room = {node for node in range(9) if free[node] >= min(gpus, GPUS)}
    count = max(1, gpus // GPUS)
    assert found.bit_count() == (count if len(room) >= count else 0)
    assert set(members(found)) <= room
    for place in wanted:
        if len(place & room) >= count:
            assert set(members(found)) <= place
            break


def test_datasets_and_jobs_have_the_shape_that_is_stated() -> None:
    demand = Demand(gpus=8000, hours=7 * 24, load=0.8, skew=1.0, datasets=300)
    jobs = make_jobs(demand)
    assert [each.number for each in jobs] == list(range(len(jobs)))
    assert jobs == sorted(jobs, key=lambda each: each.submitted)
    asked = sum(each.gpus * each.seconds for each in jobs)
    assert asked == pytest.approx(0.8 * 8000 * 7 * DAY, rel=0.01)
    weekdays = sum(each.submitted < 5 * DAY for each in jobs) / 5
    weekend = sum(each.submitted >= 5 * DAY for each in jobs) / 2
    assert weekend / weekdays == pytest.approx(0.56, abs=0.06)
    for gpus, _, time in BY_GPUS:
        share = sum(each.gpus * each.seconds for each in jobs if each.gpus == gpus) / asked
        assert share == pytest.approx(time, abs=0.06)
    sizes = [each.size_bytes for each in make_datasets(demand)]
    assert min(sizes) >= 10 * GB
    assert max(sizes) <= 20 * TB


@given(low=st.floats(0, 1), high=st.floats(0, 1))
def test_run_times_grow_with_the_quantile(low: float, high: float) -> None:
    assert run_time(min(low, high)) <= run_time(max(low, high))
    assert run_time(1.0) == 2.0**21
    assert set(stretches()) == {gpus for gpus, _, _ in BY_GPUS}


def test_harm_is_told_where_there_is_some_and_nowhere_else() -> None:
    scenario = next(quick(1, 6.0))
    jobs = make_jobs(scenario.demand)
    plain = summarise(scenario, NONE, Simulation(scenario.site, NONE, jobs).run())
    late = summarise(scenario, NODE, Simulation(scenario.site, NODE, jobs).run())
    assert harm([plain, plain])[2] == "Nowhere in these runs."
    slower = type(late)(
        **{
            **{name: getattr(plain, name) for name in plain.__struct_fields__},
            "policy": NODE.name,
            "wait_mean_seconds": plain.wait_mean_seconds + 500,
        }
    )
    assert "jobs wait" in harm([plain, slower])[2]
    assert len(table([plain, late])) == 9


def test_quantiles() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert quantile([7.0], 0.5) == 7.0
