"""How long a client may keep a connection waiting."""

import pytest

from gateway.config import LimitsConfig
from gateway.s3.patience import Patience

LIMITS = LimitsConfig(
    header_timeout_seconds=10.0, write_timeout_seconds=20.0, idle_timeout_seconds=30.0
)


def judge(patience: Patience, now: float, **how: object) -> object:
    asked: dict[str, object] = {"untaken_bytes": 0, "sent_bytes": 0, "sending": False, "idle": True}
    return patience.judge(now, **(asked | how))  # type: ignore[arg-type]


def test_a_first_head_is_waited_for_from_the_connection_on() -> None:
    patience = Patience(LIMITS, 0.0)
    assert judge(patience, 10.0) is None
    assert judge(patience, 10.1) == "header timeout"


def test_a_head_that_has_begun_counts_from_its_first_byte() -> None:
    patience = Patience(LIMITS, 0.0)
    patience.head_since = None
    patience.awaits_head(5.0)
    patience.awaits_head(14.0)
    assert judge(patience, 15.0) is None
    assert judge(patience, 15.1) == "header timeout"


def test_a_connection_is_idle_since_the_last_look_that_saw_an_answer() -> None:
    patience = Patience(LIMITS, 0.0)
    patience.head_since = None
    patience.active = True
    assert judge(patience, 29.0) is None
    assert judge(patience, 59.0) is None
    assert judge(patience, 59.1) == "idle timeout"


@pytest.mark.parametrize("untaken", [{"untaken_bytes": 5}, {"sending": True}])
def test_a_client_that_takes_nothing_is_cut(untaken: dict[str, object]) -> None:
    patience = Patience(LIMITS, 0.0)
    patience.head_since = None
    assert judge(patience, 1.0, idle=False, untaken_bytes=9, sent_bytes=1) is None
    assert judge(patience, 2.0, idle=False, sent_bytes=2, **untaken) is None
    assert judge(patience, 22.0, idle=False, sent_bytes=2, **untaken) is None
    assert judge(patience, 22.1, idle=False, sent_bytes=2, **untaken) == "write timeout"


def test_a_client_that_takes_a_little_is_not_cut() -> None:
    patience = Patience(LIMITS, 0.0)
    for second in range(100):
        assert judge(patience, float(second), idle=False, sent_bytes=second, sending=True) is None


def test_no_limit_is_none() -> None:
    patience = Patience(
        LimitsConfig(header_timeout_seconds=0, write_timeout_seconds=0, idle_timeout_seconds=0), 0.0
    )
    assert judge(patience, 1e9, untaken_bytes=1) is None
    patience.head_since = None
    assert judge(patience, 2e9) is None
