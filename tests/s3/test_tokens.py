"""Continuation tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument
from gateway.s3.tokens import decode_token, encode_token


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_token_leads_back_to_its_key(after: str) -> None:
    assert decode_token(encode_token(after)) == after


@given(st.text(max_size=60))
def test_a_token_that_was_never_given_out_is_an_invalid_argument(token: str) -> None:
    try:
        after = decode_token(token)
    except InvalidArgument:
        return
    assert encode_token(after) == token


@pytest.mark.parametrize("token", ["", "a/b", "ä", "AAAA", encode_token("key")[:-4], "\udcff"])
def test_garbage_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument):
        decode_token(token)
