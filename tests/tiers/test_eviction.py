"""The eviction policy against what must hold of any: it counts right, never takes what is pinned,
and keeps what is in use through scans and what it has through shuffled epochs."""

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.tiers.eviction import Duels, Ghosts, Policy

LIMIT_BYTES = 1000


class Cache:
    """Objects of one byte, as many as the policy has room for."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.policy: Policy[int] = Policy(capacity)

    def read(self, item: int) -> bool:
        if item in self.policy:
            self.policy.read(item)
            return True
        if len(self.policy) == self.capacity:
            assert self.policy.victim() is not None
        self.policy.add(item, 1)
        return False

    def hits(self, items: Iterable[int]) -> int:
        return sum(map(self.read, items))


class PolicyMachine(RuleBasedStateMachine):
    """Any sequence of calls, beside a dict of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.pinned: set[int] = set()

    @initialize(bundles=st.booleans())
    def start(self, bundles: bool) -> None:
        self.policy: Policy[int] = Policy(
            LIMIT_BYTES, is_bundle=lambda item: bundles and item % 2 == 0
        )

    @rule(item=st.integers(0, 30), size_bytes=st.integers(1, 200), main=st.booleans())
    def add(self, item: int, size_bytes: int, main: bool) -> None:
        # An item that is added again takes the place of the one that was there.
        others = sum(size for other, size in self.held.items() if other != item)
        self.held.pop(item, None)
        self.policy.remove(item)
        while others + size_bytes > LIMIT_BYTES:
            victim = self.policy.victim(lambda held: held in self.pinned)
            if victim is None:
                return
            assert victim.item not in self.pinned
            assert self.held.pop(victim.item) == victim.size_bytes
            others -= victim.size_bytes
        self.policy.add(item, size_bytes, main=main)
        self.held[item] = size_bytes

    @rule(item=st.integers(0, 30), worth=st.sampled_from([0.001, 0.3, 1.0]))
    def read(self, item: int, worth: float) -> None:
        self.policy.read(item, worth)

    @rule(item=st.integers(0, 30))
    def remove(self, item: int) -> None:
        assert self.policy.remove(item) == self.held.pop(item, 0)

    @rule(item=st.integers(0, 30))
    def pin(self, item: int) -> None:
        self.pinned ^= {item}

    @rule(item=st.integers(0, 60), size_bytes=st.integers(1, 200), main=st.booleans())
    def lose_with_a_bundle(self, item: int, size_bytes: int, main: bool) -> None:
        self.policy.evicted(item, size_bytes, main=main)

    @rule(item=st.integers(0, 60), size_bytes=st.integers(1, 200))
    def compete(self, item: int, size_bytes: int) -> None:
        self.policy.wins(item, size_bytes)

    @precondition(lambda self: self.held)
    @rule()
    def evict(self) -> None:
        victim = self.policy.victim(lambda held: held in self.pinned)
        if victim is None:
            # Only where there is nothing else may it find nothing.
            assert self.held.keys() <= self.pinned
            return
        assert victim.item not in self.pinned
        assert self.held.pop(victim.item) == victim.size_bytes

    @invariant()
    def counts_every_item_once(self) -> None:
        if not hasattr(self, "policy"):
            return
        assert len(self.policy) == len(self.held)
        assert all(item in self.policy for item in self.held)
        assert all(self.policy.size_bytes(item) == size for item, size in self.held.items())
        assert self.policy.resident_bytes == sum(self.held.values()) <= LIMIT_BYTES
        assert self.policy.small_bytes >= 0
        assert self.policy.main_bytes >= 0


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=50))
def test_everything_can_be_evicted_and_each_item_once(sizes: list[int]) -> None:
    policy: Policy[int] = Policy(sum(sizes))
    for item, size_bytes in enumerate(sizes):
        policy.add(item, size_bytes)
        policy.read(item, item % 5)
    victims = []
    while (victim := policy.victim()) is not None:
        victims.append((victim.item, victim.size_bytes))
    assert sorted(victims) == list(enumerate(sizes))
    assert policy.resident_bytes == 0


def test_where_all_is_pinned_nothing_goes() -> None:
    policy: Policy[int] = Policy(10)
    for item in range(10):
        policy.add(item, 1)
        policy.read(item)
    assert policy.victim(lambda _: True) is None
    assert policy.resident_bytes == 10
    victim = policy.victim(lambda item: item != 7)
    assert victim is not None
    assert victim.item == 7


def test_what_the_small_queue_hands_on_can_be_evicted_at_once() -> None:
    policy: Policy[int] = Policy(1000)
    policy.add(1, 1)
    assert policy.victim(lambda _: True) is None
    policy.add(2, 1)
    victim = policy.victim(lambda item: item == 1)
    assert victim is not None
    assert victim.item == 2


def test_a_scan_of_any_length_leaves_what_is_in_use() -> None:
    cache = Cache(1000)
    hot = range(600)
    for _ in range(4):
        cache.hits(hot)
    cache.hits(range(10_000, 60_000))
    assert cache.hits(hot) > 590


def test_what_becomes_popular_later_gets_in() -> None:
    cache = Cache(1000)
    for _ in range(4):
        cache.hits(range(1000))
    # Nobody reads those any more; others are read every 900 reads.
    hits = [cache.hits(range(5000, 5900)) for _ in range(40)]
    assert hits[-1] > 850


def test_shuffled_epochs_hit_nearly_as_much_as_can_be_kept() -> None:
    rng = random.Random(1)
    order = list(range(2000))
    for share in (0.1, 0.3, 0.5, 0.8):
        cache = Cache(round(share * len(order)))
        cache.hits(order)
        hits = 0
        for _ in range(10):
            rng.shuffle(order)
            hits += cache.hits(order)
        assert hits / 20_000 > 0.9 * share


def test_after_shuffles_popularity_still_counts() -> None:
    rng = random.Random(2)
    cache = Cache(1000)
    order = list(range(2000))
    for _ in range(6):
        rng.shuffle(order)
        cache.hits(order)
    assert cache.policy.duels.price > 10
    for _ in range(60):
        last = cache.hits(range(5000, 5900))
    assert last > 850


def test_reads_of_small_parts_do_not_make_an_item_worth_keeping() -> None:
    policy: Policy[str] = Policy(100)
    for item in ("a", "b", "c"):
        policy.add(item, 30, main=True)
    while (victim := policy.victim()) is not None and victim.item != "c":
        pass
    for item in ("a", "b"):
        policy.add(item, 30)
    policy.read("a", 0.2)
    policy.read("b", 0.9)
    victim = policy.victim()
    assert victim is not None
    assert victim.item == "a"


def test_who_pays_with_a_read_for_staying_is_told() -> None:
    spent: list[int] = []
    policy: Policy[int] = Policy(3, on_spent=spent.append)
    for item in range(3):
        policy.add(item, 1, main=True)
    victim = policy.victim()
    assert victim is not None
    assert sorted(spent) == [0, 1, 2]


@given(
    names=st.lists(st.integers(0, 20), max_size=100),
    sizes=st.lists(st.integers(1, 50), min_size=21, max_size=21),
    limit_bytes=st.integers(0, 200),
    limit_entries=st.integers(0, 10),
)
def test_ghosts_keep_to_their_limits_and_remember_the_latest(
    names: list[int], sizes: list[int], limit_bytes: int, limit_entries: int
) -> None:
    ghosts = Ghosts(limit_bytes, limit_entries)
    for name in names:
        ghosts.add(name, sizes[name])
        assert len(ghosts) <= limit_entries
    expected: dict[int, int] = {}
    for name in reversed(names):
        size_bytes = sizes[name]
        if name in expected:
            continue
        if sum(expected.values()) + size_bytes > limit_bytes or len(expected) == limit_entries:
            break
        expected[name] = size_bytes
    for name in expected:
        assert ghosts.take(name)
        assert not ghosts.take(name)


def test_the_price_rises_while_losers_come_back_and_falls_while_winners_do() -> None:
    duels = Duels()
    for number in range(20):
        duels.won(f"winner-{number}")
        duels.lost(f"loser-{number}")
        duels.asked(f"loser-{number}")
    high = duels.price
    assert high > 5
    # Each pair is decided once.
    duels.asked("loser-3")
    duels.asked("winner-3")
    assert duels.price == high
    for number in range(60):
        duels.won(f"winner-{number}")
        if number % 2:
            duels.lost(f"loser-{number}")
        duels.asked(f"winner-{number}")
    assert duels.price == 1.0
    assert len(duels) == 0


@given(
    steps=st.lists(st.tuples(st.sampled_from(["won", "lost", "asked"]), st.integers(0, 12))),
    limit_entries=st.integers(1, 6),
)
def test_duels_stay_within_their_limit_whatever_happens(
    steps: list[tuple[str, int]], limit_entries: int
) -> None:
    duels = Duels(limit_entries)
    for step, name in steps:
        getattr(duels, step)(name)
        assert len(duels) <= limit_entries
        assert 1.0 <= duels.price <= 32.0
    for name in range(13):
        duels.asked(name)
        duels.asked(name)
    assert len(duels) == 0
