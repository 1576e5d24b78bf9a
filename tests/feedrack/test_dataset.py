"""A dataset answers by position and by key, one at a time and many at once, at any S3."""

import inspect
import pickle
from typing import Any

import pytest

import feedrack
from feedrack import (
    AccessRefused,
    FeedrackError,
    MissingBucket,
    MissingObject,
    open_dataset,
)
from feedrack.filesystem import FeedrackFileSystem
from tests.feedrack.conftest import OBJECTS, Served
from tests.feedrack.endpoint import Asked, Reply, scripted
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess

KEYS = sorted(OBJECTS, key=str.encode)


def test_objects_are_found_by_position_and_by_key(served: Served) -> None:
    with served.open() as dataset:
        assert len(dataset) == len(KEYS)
        assert list(dataset.keys) == KEYS
        assert dataset[3] == OBJECTS[KEYS[3]]
        assert dataset[-1] == OBJECTS[KEYS[-1]]
        assert dataset[KEYS[5]] == OBJECTS[KEYS[5]]
        assert dataset["q/1"] == b"q"
        assert dataset[2:5] == [OBJECTS[key] for key in KEYS[2:5]]
        assert KEYS[0] in dataset
        assert "q/1" not in dataset
        with pytest.raises(IndexError):
            dataset[len(KEYS)]
        with pytest.raises(MissingObject) as caught:
            dataset["p/none"]
        assert caught.value.key == "p/none"


def test_a_batch_comes_in_the_order_asked(served: Served) -> None:
    with served.open() as dataset:
        which = [7, 3, 3, 0, 39, -2]
        assert dataset.read_batch(which) == [OBJECTS[KEYS[index]] for index in which]
        assert dataset.read_batch([KEYS[9], 1]) == [OBJECTS[KEYS[9]], OBJECTS[KEYS[1]]]
        assert dataset.read_batch([]) == []
        with pytest.raises(MissingObject, match="p/none"):
            dataset.read_batch([KEYS[1], "p/none", KEYS[2]])
        first, gone = dataset.read_each([KEYS[1], "p/none"])
        assert first == OBJECTS[KEYS[1]]
        assert isinstance(gone, MissingObject)


def test_a_batch_is_one_request_to_a_gateway(at_gateway: Served, gateway: GatewayProcess) -> None:
    def asked(operation: str) -> float:
        return gateway.counter("feedrack_requests_total", operation=operation)

    with at_gateway.open() as dataset:
        before = asked("GetObjects"), asked("GetObject")
        assert dataset.read_batch(range(40)) == [OBJECTS[key] for key in KEYS]
        assert (asked("GetObjects"), asked("GetObject")) == (before[0] + 1, before[1])


@pytest.mark.parametrize("order", ["lexical", "shuffled:7", [5, 1, 1, 30]])
@pytest.mark.parametrize("ahead", [0, 3])
def test_iteration_follows_the_order(served: Served, order: Any, ahead: int) -> None:
    with served.open() as dataset:
        found = list(dataset.items(order, batch_size=7, ahead=ahead))
        assert all(OBJECTS[key] == data for key, data in found)
        keys = [key for key, _ in found]
        if order == "lexical":
            assert keys == KEYS
            assert list(dataset) == [OBJECTS[key] for key in KEYS]
        elif order == "shuffled:7":
            assert sorted(keys, key=str.encode) == KEYS != keys
        else:
            assert keys == [KEYS[index] for index in order]


def test_an_iteration_that_is_given_up_leaves_nothing_running(at_gateway: Served) -> None:
    with at_gateway.open() as dataset:
        items = dataset.items(batch_size=3, ahead=4)
        assert next(items)[0] == KEYS[0]
        items.close()  # type: ignore[attr-defined]
        assert dataset[0] == OBJECTS[KEYS[0]]


def test_a_listing_of_many_pages_is_one_dataset() -> None:
    pages = {"": (["a", "b"], "t1"), "t1": (["c"], "t2"), "t2": (["d"], "")}

    def script(asked: Asked) -> Reply:
        token = asked.target.partition("continuation-token=")[2].partition("&")[0]
        keys, following = pages[token]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z"
            "</LastModified></Contents>"
            for key in keys
        )
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        truncated = "true" if following else "false"
        body = (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{truncated}</IsTruncated>{more}{contents}</ListBucketResult>"
        )
        return Reply(200, body.encode())

    with (
        scripted(script) as endpoint,
        open_dataset("s3://train/", endpoint_url=endpoint.url, anonymous=True) as dataset,
    ):
        assert list(dataset.keys) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("body", [b"", b"<Other/>", b"<ListBucketResult><Contents/>", b"\x00"])
def test_an_answer_that_is_no_listing_is_refused(body: bytes) -> None:
    with (
        scripted(lambda _: Reply(200, body)) as endpoint,
        pytest.raises(FeedrackError, match="not a listing"),
    ):
        open_dataset("s3://train/", endpoint_url=endpoint.url, anonymous=True)


def test_what_cannot_be_opened_says_why(served: Served) -> None:
    with pytest.raises(MissingBucket):
        open_dataset(
            "s3://nobody/",
            endpoint_url=served.url,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
        )
    with served.open("nothing/") as empty:
        assert len(empty) == 0
        assert list(empty) == []


def test_a_wrong_secret_is_refused_and_never_shown(at_gateway: Served) -> None:
    with pytest.raises(AccessRefused) as caught:
        at_gateway.open(secret_key="not-the-secret")
    assert "not-the-secret" not in repr(caught.value)
    with at_gateway.open() as dataset:
        assert SECRET_KEY not in repr(dataset)


def test_a_pickle_holds_a_secret_only_where_one_was_given(
    at_gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with at_gateway.open(access_key=None, secret_key=None) as dataset:
        raw = pickle.dumps(dataset)
        assert SECRET_KEY.encode() not in raw
        with pickle.loads(raw) as restored:
            assert restored.read_batch([1, 2]) == dataset.read_batch([1, 2])
            assert restored.keys == dataset.keys


def test_errors_survive_a_pickle() -> None:
    for name in feedrack.__all__:
        kind = getattr(feedrack, name)
        if inspect.isclass(kind) and issubclass(kind, FeedrackError):
            error = kind("what", key="k")
            restored = pickle.loads(pickle.dumps(error))
            assert (type(restored), str(restored), restored.key) == (kind, "what", "k")
            # How a DataLoader brings an error over from its worker.
            assert str(kind("what")) == "what"


def test_the_filesystem_takes_the_same_options() -> None:
    ours = set(inspect.signature(open_dataset).parameters) - {"url", "short_circuit"}
    theirs = set(inspect.signature(FeedrackFileSystem.__init__).parameters) - {"self", "options"}
    assert ours == theirs
