"""When a cold read takes the whole shard."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.tiers.packed import appetite
from gateway.tiers.packed.appetite import Appetite, comes_soon

MIB = 1024**2
SHARD_BYTES = 256 * MIB
SOMEWHERE = 100 * MIB


def reads_until_whole(hungry: Appetite, size_bytes: int, *, pause_seconds: float = 0.0) -> int:
    """How many ranges are read before the whole shard is; -1 where a thousand are."""
    for count in range(1000):
        now = count * pause_seconds
        if hungry.wants_whole("s", SHARD_BYTES, SOMEWHERE, size_bytes, now):
            return count
    return -1


def test_who_begins_at_the_beginning_gets_the_whole_shard() -> None:
    assert Appetite(SHARD_BYTES).wants_whole("s", SHARD_BYTES, 0, 100, 0.0)
    assert Appetite(SHARD_BYTES).wants_whole("s", SHARD_BYTES, 65_535, 100, 0.0)
    assert not Appetite(SHARD_BYTES).wants_whole("s", SHARD_BYTES, 65_536, 100, 0.0)


def test_ranges_are_read_until_they_have_cost_a_quarter_of_the_shard() -> None:
    assert reads_until_whole(Appetite(SHARD_BYTES), 0) == 64
    assert reads_until_whole(Appetite(SHARD_BYTES), MIB) == 32
    assert reads_until_whole(Appetite(SHARD_BYTES), SHARD_BYTES) == 0


def test_what_was_paid_long_ago_does_not_count() -> None:
    assert reads_until_whole(Appetite(SHARD_BYTES), 0, pause_seconds=120.0) == -1


def test_a_small_shard_is_taken_whole_at_once() -> None:
    assert Appetite(SHARD_BYTES).wants_whole("s", 3 * MIB, 2 * MIB, 10, 0.0)


def test_a_shard_too_large_for_the_cache_is_never_taken_whole() -> None:
    hungry = Appetite(SHARD_BYTES - 1)
    assert reads_until_whole(hungry, MIB) == -1
    assert not hungry.wants_whole("s", SHARD_BYTES, 0, 10, 0.0)


def test_a_shard_that_was_taken_begins_anew() -> None:
    hungry = Appetite(SHARD_BYTES)
    assert reads_until_whole(hungry, 0) == reads_until_whole(hungry, 0) == 64


def test_shards_are_remembered_up_to_a_bound() -> None:
    hungry = Appetite(SHARD_BYTES)
    for number in range(appetite._MAX_SHARDS + 10):
        hungry.wants_whole(f"s{number}", SHARD_BYTES, SOMEWHERE, 0, 0.0)
    assert len(hungry._paid) == appetite._MAX_SHARDS
    assert "s0" not in hungry._paid


@given(
    reads=st.lists(
        st.tuples(st.integers(65_536, SHARD_BYTES), st.integers(0, MIB), st.floats(0.0, 1000.0)),
        max_size=300,
    )
)
def test_ranges_never_cost_more_than_the_share(reads: list[tuple[int, int, float]]) -> None:
    hungry = Appetite(SHARD_BYTES)
    paid, now = 0, 0.0
    for offset, size_bytes, pause in reads:
        now += pause
        if hungry.wants_whole("s", SHARD_BYTES, offset, size_bytes, now):
            paid = 0
        else:
            paid += MIB + size_bytes
            if pause == 0.0 and now == 0.0:
                assert paid < appetite._SHARE * (SHARD_BYTES + MIB)


def test_what_is_near_the_coming_byte_is_waited_for() -> None:
    assert comes_soon(16 * MIB - 1, 0)
    assert not comes_soon(16 * MIB, 0)
    assert comes_soon(20 * MIB, 10 * MIB)
    assert comes_soon(0, 10 * MIB)
