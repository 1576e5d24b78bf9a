"""Nodes prove themselves: what was not signed with the secret, or is said again, is refused."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.proof import CLIENT_NONCE, NODE, SERVER_NONCE, SIGNATURE, Prover, Verifier
from gateway.config import Secret

OURS = Prover(Secret("between us"))
THEIRS = Prover(Secret("guessed"))
TARGET = "/v1/span?key=a%20b"

values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
ours = st.dictionaries(st.from_regex(r"x-feedrack-[a-z]{1,8}", fullmatch=True), values, max_size=4)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def signed(verifier: Verifier, prover: Prover = OURS, nonce: str | None = None) -> dict[str, str]:
    return prover.signed_request(
        "GET", TARGET, {}, node="a1", server_nonce=verifier.nonce if nonce is None else nonce
    )


def test_a_signed_request_is_good_once() -> None:
    verifier = Verifier(OURS, now=Clock())
    headers = signed(verifier)
    assert verifier.verify("GET", TARGET, headers) == "good"
    assert verifier.verify("GET", TARGET, headers) == "stale"


def test_another_secret_and_no_signature_are_bad() -> None:
    verifier = Verifier(OURS, now=Clock())
    assert verifier.verify("GET", TARGET, signed(verifier, THEIRS)) == "bad"
    assert verifier.verify("GET", TARGET, {}) == "bad"
    assert verifier.verify("GET", TARGET, {SIGNATURE: "0" * 64}) == "bad"


def test_a_nonce_that_is_not_known_is_stale_and_not_bad() -> None:
    verifier = Verifier(OURS, now=Clock())
    assert verifier.verify("GET", TARGET, signed(verifier, nonce="-")) == "stale"
    other = Verifier(OURS, now=Clock())
    assert verifier.verify("GET", TARGET, signed(other)) == "stale"


def test_a_nonce_is_good_until_the_one_after_the_next() -> None:
    clock = Clock()
    verifier = Verifier(OURS, now=clock, nonce_seconds=60)
    first = verifier.nonce
    clock.seconds = 61
    assert verifier.verify("GET", TARGET, signed(verifier, nonce=first)) == "good"
    assert verifier.nonce != first
    clock.seconds = 122
    assert verifier.verify("GET", TARGET, signed(verifier, nonce=first)) == "stale"


def test_a_nonce_is_renewed_by_its_uses() -> None:
    verifier = Verifier(OURS, now=Clock(), nonce_uses=3)
    first = verifier.nonce
    for _ in range(3):
        assert verifier.verify("GET", TARGET, signed(verifier, nonce=first)) == "good"
    assert verifier.nonce != first
    assert verifier.verify("GET", TARGET, signed(verifier, nonce=first)) == "good"


@given(ours, ours, st.sampled_from(["method", "target", "headers"]))
def test_whatever_is_changed_makes_it_bad(
    headers: dict[str, str], others: dict[str, str], what: str
) -> None:
    verifier = Verifier(OURS, now=Clock())
    sent = OURS.signed_request("GET", TARGET, headers, node="a1", server_nonce=verifier.nonce)
    method, target = "GET", TARGET
    if what == "method":
        method = "PUT"
    elif what == "target":
        target = TARGET + "&"
    else:
        changed = {**sent, **others}
        if changed == sent:
            return
        sent = changed
    assert verifier.verify(method, target, sent) == "bad"


@given(st.dictionaries(st.sampled_from([SIGNATURE, NODE, SERVER_NONCE, CLIENT_NONCE]), st.text()))
def test_rubbish_is_bad(headers: dict[str, str]) -> None:
    assert Verifier(OURS, now=Clock()).verify("GET", TARGET, headers) == "bad"


@given(ours, st.integers(100, 599), st.integers(0, 2**40))
def test_an_answer_answers_one_request_with_one_head(
    headers: dict[str, str], status: int, length: int
) -> None:
    sent = OURS.signed_answer("ab" * 32, status, length, headers)
    assert OURS.signs_answer("ab" * 32, status, length, sent)
    assert not OURS.signs_answer("cd" * 32, status, length, sent)
    assert not OURS.signs_answer("ab" * 32, status + 1, length, sent)
    assert not OURS.signs_answer("ab" * 32, status, length + 1, sent)
    assert not OURS.signs_answer("ab" * 32, status, length, {**sent, "x-feedrack-tier": "\0"})
    assert not THEIRS.signs_answer("ab" * 32, status, length, sent)


def test_a_request_is_no_answer_and_no_secret_shows() -> None:
    headers = signed(Verifier(OURS, now=Clock()))
    assert not OURS.signs_answer("", 200, 0, headers)
    assert "between us" not in repr(vars(OURS))
