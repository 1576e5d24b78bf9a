"""Who may read a whole dataset is told by the tenants' rules, and by nothing else."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.readers import EVERYBODY, Readers
from gateway.auth.rules import Policy
from gateway.config import Rule, TenantConfig


def tenant(name: str, *rules: Rule, key: str = "") -> TenantConfig:
    return TenantConfig(
        name=name, access_key=key or name, secret_key_file=Path("/nowhere"), policy=rules
    )


def test_a_reader_is_who_may_get_every_key() -> None:
    readers = Readers(
        [
            tenant("all", Rule(allow=("*",))),
            tenant("lists", Rule(allow=("ListObjectsV2", "HeadObject"))),
            tenant("other", Rule(allow=("*",), buckets=("other",))),
            tenant("folder", Rule(allow=("Get*",), buckets=("train/imagenet/*",))),
            tenant(
                "kept-out", Rule(allow=("*",)), Rule(deny=("*",), buckets=("train/imagenet/x*",))
            ),
        ]
    )

    def of(prefix: str) -> tuple[str, ...]:
        return readers.of("train", prefix, public_read=False)

    assert of("") == ("all",)
    assert of("imagenet/") == ("all", "folder")
    assert of("imagenet/a/") == ("all", "folder", "kept-out")
    # Keys that begin so may lie beside the folder.
    assert of("imagenet") == ("all",)
    assert of("coco/") == ("all", "kept-out")
    assert readers.of("nobody", "", public_read=False) == ("all", "kept-out")


def test_of_a_public_bucket_everybody_is_a_reader() -> None:
    readers = Readers([tenant("none", Rule(deny=("*",)))])

    assert readers.of("train", "x/", public_read=True) == EVERYBODY
    assert readers.of("train", "x/", public_read=False) == ()


def test_a_tenant_of_several_keys_is_named_once_and_by_what_any_of_them_may() -> None:
    readers = Readers(
        [
            tenant("vision", Rule(allow=("*",), buckets=("train",)), key="old"),
            tenant("vision", Rule(allow=("*",)), key="new"),
        ]
    )

    assert readers.of("train", "", public_read=False) == ("vision",)
    assert readers.of("other", "", public_read=False) == ("vision",)


RULES = st.lists(
    st.builds(
        lambda deny, names: (
            Rule(deny=("Get*",), buckets=tuple(names))
            if deny
            else Rule(allow=("Get*",), buckets=tuple(names))
        ),
        st.booleans(),
        st.lists(
            st.sampled_from(["b", "*", "b*", "b/*", "*/p*", "b/p*", "b/p/*", "b/*q", "b/p/q", "c"]),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=4,
)


@given(RULES, st.text("pq/", max_size=3), st.text("pq/", max_size=3))
def test_a_reader_of_a_prefix_reads_every_key_and_every_prefix_below(
    rules: list[Rule], prefix: str, rest: str
) -> None:
    readers, policy = Readers([tenant("t", *rules)]), Policy(rules)
    if readers.of("b", prefix, public_read=False):
        assert policy.allows("GetObject", "b", prefix + rest)
        assert readers.of("b", prefix + rest, public_read=False) == ("t",)


@given(RULES, st.text("pq/", max_size=3))
def test_who_is_no_reader_lacks_a_key_or_has_them_by_several_rules(
    rules: list[Rule], prefix: str
) -> None:
    policy = Policy(rules)
    # Longer than any pattern: what matches it by a `*` at the end matches all that begin so.
    unlike = [prefix + rest for rest in ("zzzzzz", "qqqqqq", "p/q", "p/zz", "/zz", "p", "q")]
    one_by_one = [Policy([rule]) for rule in rules if rule.allow]
    if not policy.allows_all("GetObject", "b", prefix):
        allowed_by_one = any(
            all(each.allows("GetObject", "b", key) for key in unlike) for each in one_by_one
        )
        denied = any(rule.deny for rule in rules)
        assert denied or not allowed_by_one
