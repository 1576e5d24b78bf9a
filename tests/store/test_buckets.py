"""A bucket's name leads to one origin, or to none."""

from typing import Any, cast

import pytest

from gateway.config import parse
from gateway.errors import NoSuchBucket
from gateway.model.objects import ObjectRef
from gateway.store.buckets import BucketTable
from gateway.tiers.protocol import Origin


class Named:
    """All that the table asks of an origin."""

    def __init__(self, name: str) -> None:
        self.name = name


def table(*, past_packs: bool = False, **raw: Any) -> BucketTable:
    mark = "!" if past_packs else ""
    config = parse(
        {"origins": {"nas": {"type": "directory", "path": "/srv"}, "cloud": {"type": "s3"}}, **raw}
    )
    origins = {name: cast(Origin, Named(name + mark)) for name in config.origins}
    return BucketTable(config, origins, past_packs=past_packs)


LISTED = {
    "train": {"origin": "cloud", "origin_bucket": "train-eu", "freshness_seconds": 0},
    "public": {"origin": "nas", "immutable": True, "public_read": True},
}


def test_a_listed_bucket_is_where_the_configuration_says() -> None:
    bucket = table(buckets=LISTED).resolve("train")
    assert (bucket.name, bucket.origin.name, bucket.origin_bucket) == ("train", "cloud", "train-eu")
    assert bucket.freshness_seconds == 0
    assert not bucket.immutable
    assert not bucket.public_read


def test_a_listed_bucket_has_its_own_name_at_the_origin_unless_said() -> None:
    bucket = table(buckets=LISTED).resolve("public")
    assert (bucket.origin.name, bucket.origin_bucket) == ("nas", "public")
    assert bucket.immutable
    assert bucket.public_read


def test_an_unlisted_bucket_is_the_default_origins() -> None:
    bucket = table(default_origin="nas", buckets=LISTED).resolve("other")
    assert (bucket.name, bucket.origin.name, bucket.origin_bucket) == ("other", "nas", "other")
    assert bucket.freshness_seconds == 60
    assert not bucket.public_read


def test_an_unlisted_bucket_without_a_default_origin_is_none() -> None:
    with pytest.raises(NoSuchBucket) as refused:
        table(buckets=LISTED).resolve("other")
    assert refused.value.fields == {"BucketName": "other"}


def test_a_listed_bucket_without_an_origin_is_the_default_origins() -> None:
    found = table(default_origin="cloud", buckets={"b": {"freshness_seconds": 5}})
    assert found.resolve("b").origin is found.default
    assert found.resolve("b").freshness_seconds == 5


def test_the_listed_are_told_in_order() -> None:
    assert [bucket.name for bucket in table(buckets=LISTED).listed] == ["train", "public"]
    assert table().listed == ()


def test_a_ref_names_the_origins_bucket_so_that_two_names_share_one_cache_entry() -> None:
    found = table(
        buckets={
            "train": {"origin": "cloud", "origin_bucket": "data"},
            "eval": {"origin": "cloud", "origin_bucket": "data"},
        }
    )
    ref = found.resolve("train").ref("a/b")
    assert ref == ObjectRef("cloud", "data", "a/b") == found.resolve("eval").ref("a/b")
    assert found.resolve("train").ref("a", "v1").version_id == "v1"


def test_past_packs_nothing_is_believed_and_writes_are_those_of_the_plain_name() -> None:
    plain, past = (
        table(past_packs=either, buckets=LISTED, default_origin="nas") for either in (False, True)
    )
    for name in ("public", "train", "other"):
        bucket = past.resolve(name)
        assert bucket.past_packs
        assert not plain.resolve(name).past_packs
        assert not bucket.immutable
        assert bucket.freshness_seconds == 0
        assert bucket.ref("a") != plain.resolve(name).ref("a")
        assert bucket.written_ref("a") == plain.resolve(name).ref("a")
        assert bucket.written_ref("a") == plain.resolve(name).written_ref("a")
        assert bucket.immutable_to_some == plain.resolve(name).immutable_to_some


def test_an_origins_bucket_is_seen_by_every_name_that_leads_to_it() -> None:
    made = table(
        default_origin="nas",
        buckets={**LISTED, "also": {"origin": "nas", "origin_bucket": "plain"}},
    )

    def seen(origin: str, bucket: str) -> list[str]:
        found = made.seen(origin, bucket)
        assert all(made.resolve(each.name) == each for each in found)
        return sorted(each.name for each in found)

    assert seen("cloud", "train-eu") == ["train"]
    assert seen("nas", "plain") == ["also", "plain"]
    assert seen("nas", "public") == ["public"]
    # By that name clients get another origin's.
    assert seen("nas", "train") == []
    assert seen("cloud", "unlisted") == seen("nowhere", "plain") == []
