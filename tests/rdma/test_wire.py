"""Documents of the wire: what is read, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rdma.wire import (
    DOCUMENT_BYTES,
    BadDocument,
    PairAddress,
    Prepare,
    Session,
    read_document,
)

ADDRESS = PairAddress(17, 4711, "::ffff:10.0.0.1", 4096, "ethernet")


def test_an_address_comes_back_as_it_went() -> None:
    raw = msgspec.json.encode(Prepare(ADDRESS))
    assert read_document(Prepare, raw).address == ADDRESS


@pytest.mark.parametrize(
    "wrong",
    [
        {"qpn": -1},
        {"qpn": 1 << 24},
        {"psn": 1 << 24},
        {"psn": 1.5},
        {"gid": "10.0.0.1"},
        {"gid": "fe80::1%eth0"},
        {"gid": ":" * 40},
        {"mtu": 9000},
        {"link": "token-ring"},
        {"lid": 1 << 16},
        {"reads": 0},
        {"reads": 256},
        {"other": 1},
    ],
)
def test_an_address_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    raw = msgspec.json.encode({"address": {**msgspec.to_builtins(ADDRESS), **wrong}})
    with pytest.raises(BadDocument):
        read_document(Prepare, raw)


@given(st.binary(max_size=2 * DOCUMENT_BYTES))
def test_whatever_is_sent_is_a_document_or_refused(raw: bytes) -> None:
    for kind in (Prepare, Session):
        with pytest.raises(BadDocument):
            read_document(kind, raw)


@pytest.mark.parametrize("raw", [b"[" * 1000, b'{"session":' * 90, b'"' + b"x" * 1022])
def test_deep_and_long_documents_cost_nothing(raw: bytes) -> None:
    with pytest.raises(BadDocument):
        read_document(Session, raw)
