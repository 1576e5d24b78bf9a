"""Conditional headers: which of them count, in which order, and what they let through."""

import os
import time
from collections.abc import Iterator
from email.utils import formatdate
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import NotModified, PreconditionFailed, S3Error
from gateway.model.conditions import (
    UNCONDITIONAL,
    UNCONDITIONAL_WRITE,
    Conditions,
    WriteConditions,
    check_copy_source,
    check_read,
    parse_conditions,
    unquote_etag,
)
from gateway.model.objects import ObjectInfo

ETAG = "9b2cf535f27731c974343645a3985328"
OTHER = "0" * 32
MODIFIED = 1_700_000_000
INFO = ObjectInfo(etag=ETAG, size_bytes=1, last_modified_ms=MODIFIED * 1000 + 999)
NAMES = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
SINCE = 784_111_777  # Sun, 06 Nov 1994 08:49:37 GMT, RFC 9110 section 5.6.7


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose local time is not GMT."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "UTC+8")
    time.tzset()
    yield
    if before is None:
        monkeypatch.delenv("TZ")
    else:
        monkeypatch.setenv("TZ", before)
    time.tzset()


def outcome(conditions: Conditions, *, copy: bool = False) -> int:
    """The status a read under `conditions` ends in."""
    check = check_copy_source if copy else check_read
    try:
        check(conditions, INFO)
    except S3Error as error:
        return error.status
    return 200


def asked(**headers: str) -> Conditions:
    return parse_conditions({name.replace("_", "-"): value for name, value in headers.items()})


# For each header a value under which it is met and one under which it is not.
MET = {
    "if-match": f'"{ETAG}"',
    "if-none-match": f'"{OTHER}"',
    "if-modified-since": formatdate(MODIFIED - 1, usegmt=True),
    "if-unmodified-since": formatdate(MODIFIED, usegmt=True),
}
UNMET = {
    "if-match": f'"{OTHER}"',
    "if-none-match": f'"{ETAG}"',
    "if-modified-since": formatdate(MODIFIED, usegmt=True),
    "if-unmodified-since": formatdate(MODIFIED - 1, usegmt=True),
}


def expected(state: dict[str, bool | None]) -> int:
    """RFC 9110 section 13.2.2, written down a second time."""
    match, none_match, modified, unmodified = (state[name] for name in NAMES)
    if match is False or (match is None and unmodified is False):
        return 412
    if none_match is False or (none_match is None and modified is False):
        return 304
    return 200


@pytest.mark.parametrize("states", list(product([None, True, False], repeat=4)))
def test_all_81_combinations_follow_the_rfc(states: tuple[bool | None, ...]) -> None:
    state = dict(zip(NAMES, states, strict=True))
    headers = {
        name: MET[name] if met else UNMET[name] for name, met in state.items() if met is not None
    }
    conditions = parse_conditions(headers)
    assert outcome(conditions) == expected(state)
    # A copy's source has the same rules and no 304.
    copied = parse_conditions(
        {f"x-amz-copy-source-{k}": v for k, v in headers.items()}, "x-amz-copy-source-"
    )
    assert copied == conditions
    assert outcome(copied, copy=True) == (412 if expected(state) == 304 else expected(state))


def test_the_pairs_that_aws_documents() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html"""
    matched = asked(if_match=MET["if-match"], if_unmodified_since=UNMET["if-unmodified-since"])
    assert outcome(matched) == 200
    unchanged = asked(
        if_none_match=UNMET["if-none-match"], if_modified_since=MET["if-modified-since"]
    )
    assert outcome(unchanged) == 304
    assert outcome(unchanged, copy=True) == 412


def test_a_failed_condition_is_named() -> None:
    with pytest.raises(PreconditionFailed) as match:
        check_read(asked(if_match=UNMET["if-match"]), INFO)
    assert match.value.fields == {"Condition": "If-Match"}
    with pytest.raises(PreconditionFailed) as unmodified:
        check_read(asked(if_unmodified_since=UNMET["if-unmodified-since"]), INFO)
    assert unmodified.value.fields == {"Condition": "If-Unmodified-Since"}


def test_a_304_names_the_version_it_speaks_of() -> None:
    with pytest.raises(NotModified) as unchanged:
        check_read(asked(if_none_match="*"), INFO)
    assert unchanged.value.headers == {
        "etag": f'"{ETAG}"',
        "last-modified": "Tue, 14 Nov 2023 22:13:20 GMT",
    }


@pytest.mark.parametrize(
    ("header", "etags"),
    [
        (f'"{ETAG}"', (ETAG,)),
        (ETAG, (ETAG,)),
        (f'W/"{ETAG}"', (ETAG,)),
        (f'w/"{ETAG}"', (ETAG,)),
        (f'"{OTHER}", W/"{ETAG}"', (OTHER, ETAG)),
        (f"{OTHER},{ETAG}", (OTHER, ETAG)),
        (f' ,"{OTHER}" ,, "{ETAG}-12",', (OTHER, f"{ETAG}-12")),
        ('"a,b", "c"', ("a,b", "c")),
        ('""', ("",)),
        ("*", ("*",)),
        ("", ()),
        (" , ", ()),
    ],
)
def test_lists_of_etags(header: str, etags: tuple[str, ...]) -> None:
    assert asked(if_match=header).if_match == etags
    assert asked(if_none_match=header).if_none_match == etags


def test_a_star_is_any_version() -> None:
    assert outcome(asked(if_match="*")) == 200
    assert outcome(asked(if_none_match="*")) == 304


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 06 Nov 1994 08:49:37 -0000",
        "Sun, 06 Nov 1994 09:49:37 +0100",
    ],
)
def test_dates_in_every_form_of_http_are_gmt_wherever_we_run(date: str, far_west: None) -> None:
    assert asked(if_modified_since=date).if_modified_since == SINCE
    assert asked(if_unmodified_since=date).if_unmodified_since == SINCE


@pytest.mark.parametrize(
    "date",
    [
        "",
        "0",
        "yesterday",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 99999 08:49:37 GMT",
        f"Sun, 06 Nov {'9' * 5000} 08:49:37 GMT",
        "Sun, 06 Nov 1994 99:99:99 GMT",
        "Sun, 06 Nov 1994 08:49:37 +9999999999",
        "\u0661\u0662 Nov 1994",
        "2023-11-14T22:13:20Z",
    ],
)
def test_dates_that_are_none_are_ignored(date: str) -> None:
    assert asked(if_modified_since=date, if_unmodified_since=date) == UNCONDITIONAL


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_the_ends_of_the_calendar_do_no_harm(year: str) -> None:
    for hour in ("00", "23"):
        for zone in ("GMT", "+1200", "-1200"):
            date = f"Fri, 31 Dec {year} {hour}:00:00 {zone}"
            assert outcome(asked(if_unmodified_since=date)) in (200, 412)


ETAG_TEXT = st.text() | st.text(f'"*,W/ {ETAG[:2]}', max_size=20)
DATE_TEXT = st.text() | st.lists(
    st.sampled_from(
        [
            "Sun",
            ",",
            " ",
            "06",
            "Nov",
            "94",
            "1994",
            "9999999999",
            "08:49:37",
            ":",
            "+0100",
            "-9999",
            "GMT",
            "-",
            "Jan",
            "0",
            "99",
            ".",
            "am",
            "\u0661",
        ]
    ),
    max_size=12,
).map(" ".join)


@given(ETAG_TEXT, ETAG_TEXT, DATE_TEXT, DATE_TEXT)
def test_no_header_breaks_a_read(
    match: str, none_match: str, modified: str, unmodified: str
) -> None:
    conditions = asked(
        if_match=match,
        if_none_match=none_match,
        if_modified_since=modified,
        if_unmodified_since=unmodified,
    )
    assert outcome(conditions) in (200, 304, 412)
    assert outcome(conditions, copy=True) in (200, 412)


@given(st.integers(0, 4_102_444_800))
def test_a_date_we_write_is_the_date_we_read(seconds: int) -> None:
    date = formatdate(seconds, usegmt=True)
    assert asked(if_modified_since=date).if_modified_since == seconds


@given(st.text(st.characters(exclude_characters='"'), max_size=40))
def test_an_etag_is_itself_within_its_quotes(etag: str) -> None:
    assert unquote_etag(f'"{etag}"') == etag
    assert unquote_etag(f'W/"{etag}"') == etag


def test_no_condition_is_no_condition() -> None:
    assert not parse_conditions({})
    assert not UNCONDITIONAL
    assert asked(if_match="*")
    assert asked(if_modified_since=MET["if-modified-since"])
    assert outcome(UNCONDITIONAL) == 200


def test_a_write_is_conditional_by_either_header() -> None:
    assert not UNCONDITIONAL_WRITE
    assert WriteConditions(if_match=ETAG)
    assert WriteConditions(if_none_match_any=True)
