"""Many objects at once: in a batch where a gateway answers, singly anywhere else."""

import json
from typing import Any

import pytest

from feedrack.endpoint import Access
from feedrack.errors import AccessRefused, MissingObject, RequestRefused, Unavailable
from feedrack.reading import Reader
from tests.feedrack.endpoint import FRAMES, Asked, Reply, batch_reply, frame_bytes, scripted

OBJECTS = {f"k{number}": bytes([number]) * number * 50 for number in range(30)}
KEYS = list(OBJECTS)
GATEWAY = {"x-feedrack-node": "n1"}


def reader(url: str, **how: Any) -> Reader:
    access = Access(endpoint_url=url, anonymous=True, attempts=3, connections=4)
    pauses: list[float] = []
    return Reader("train", access._replace(**how), pause=pauses.append)


def single(asked: Asked, headers: dict[str, str] | None = None) -> Reply:
    key = asked.target.removeprefix("/train").removeprefix("/")
    if not key:
        return Reply(200, b"", headers or {})
    return Reply(200, OBJECTS[key], headers or {}) if key in OBJECTS else Reply(404)


def test_a_batch_is_one_request_to_a_gateway() -> None:
    def script(asked: Asked) -> Reply:
        return batch_reply(asked, OBJECTS) if asked.method == "POST" else single(asked, GATEWAY)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        for _ in range(2):
            assert subject.read_each(KEYS) == list(OBJECTS.values())
        assert [asked.method for asked in endpoint.asked] == ["HEAD", "POST", "POST"]
        assert endpoint.asked[1].target == "/train?feedrack-batch="
        assert endpoint.connections == 1
        backwards = KEYS[::-1] + KEYS[:1]
        assert subject.read_each(backwards) == [OBJECTS[key] for key in backwards]
        subject.close()


def test_another_endpoint_never_sees_a_batch_request() -> None:
    with scripted(single) as endpoint:
        subject = reader(endpoint.url)
        for _ in range(2):
            assert subject.read_each(KEYS) == list(OBJECTS.values())
        methods = [asked.method for asked in endpoint.asked]
        assert methods.count("HEAD") == 1
        assert methods.count("GET") == 2 * len(KEYS)
        assert len(methods) == 1 + 2 * len(KEYS)
        subject.close()


@pytest.mark.parametrize("status", [400, 405, 501])
def test_a_gateway_from_before_batches_is_asked_for_one_once(status: int) -> None:
    def script(asked: Asked) -> Reply:
        return Reply(status) if asked.method == "POST" else single(asked, GATEWAY)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        for _ in range(2):
            assert subject.read_each(KEYS) == list(OBJECTS.values())
        assert [asked.method for asked in endpoint.asked].count("POST") == 1
        subject.close()


def test_an_object_that_cannot_be_had_takes_its_place_as_an_error() -> None:
    def script(asked: Asked) -> Reply:
        return batch_reply(asked, OBJECTS) if asked.method == "POST" else single(asked, GATEWAY)

    for gateway in (True, False):
        with scripted(script if gateway else single) as endpoint:
            subject = reader(endpoint.url)
            first, gone, last = subject.read_each(["k1", "gone", "k2"])
            assert (first, last) == (OBJECTS["k1"], OBJECTS["k2"])
            assert isinstance(gone, MissingObject)
            assert gone.key == "gone"
            subject.close()


@pytest.mark.parametrize("cut", [0, 1, 700, 5000, 20_000])
def test_a_batch_that_breaks_off_goes_on_where_it_broke(cut: int) -> None:
    def script(asked: Asked) -> Reply:
        if asked.method != "POST":
            return single(asked, GATEWAY)
        return batch_reply(asked, OBJECTS, cut=cut if len(endpoint.asked) == 2 else None)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        assert subject.read_each(KEYS) == list(OBJECTS.values())
        first, second = (json.loads(asked.body)["objects"] for asked in endpoint.asked[1:])
        assert len(second) <= len(first)
        assert second == first[len(first) - len(second) :]
        subject.close()


def test_a_batch_that_always_breaks_off_ends_once_nothing_more_comes() -> None:
    def script(asked: Asked) -> Reply:
        return (
            batch_reply(asked, OBJECTS, cut=0) if asked.method == "POST" else single(asked, GATEWAY)
        )

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        with pytest.raises(Unavailable, match="3 times"):
            subject.read_each(KEYS)
        assert [asked.method for asked in endpoint.asked].count("POST") == 3
        subject.close()


def test_an_object_in_passing_trouble_is_asked_for_again() -> None:
    def script(asked: Asked) -> Reply:
        if asked.method != "POST":
            return single(asked, GATEWAY)
        if len(json.loads(asked.body)["objects"]) == 1:
            return batch_reply(asked, OBJECTS)
        body = (
            frame_bytes(0, 200, {}, OBJECTS["k1"])
            + frame_bytes(1, 503, {"code": "SlowDown"}, b"")
            + frame_bytes(0xFFFFFFFF, 0, {"objects": 2, "failed": 1}, b"")
        )
        return Reply(200, body, FRAMES)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        assert subject.read_each(["k1", "k2"]) == [OBJECTS["k1"], OBJECTS["k2"]]
        subject.close()


def test_an_object_that_stays_in_trouble_is_an_error_in_its_place() -> None:
    def script(asked: Asked) -> Reply:
        if asked.method != "POST":
            return single(asked, GATEWAY)
        count = len(json.loads(asked.body)["objects"])
        head = frame_bytes(0, 200, {}, b"x") if count == 2 else b""
        bad = frame_bytes(count - 1, 503, {"code": "SlowDown"}, b"")
        end = frame_bytes(0xFFFFFFFF, 0, {"objects": count, "failed": 1}, b"")
        return Reply(200, head + bad + end, FRAMES)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        first, second = subject.read_each(["k1", "k2"])
        assert first == b"x"
        assert isinstance(second, Unavailable)
        subject.close()


def test_what_is_wrong_with_the_whole_batch_is_raised() -> None:
    def script(asked: Asked) -> Reply:
        return Reply(403) if asked.method == "POST" else single(asked, GATEWAY)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        with pytest.raises(AccessRefused):
            subject.read_each(KEYS)
        subject.close()


def test_more_than_a_batch_holds_are_several() -> None:
    keys = ["k1", "k2"] * 7_000

    def script(asked: Asked) -> Reply:
        return batch_reply(asked, OBJECTS) if asked.method == "POST" else single(asked, GATEWAY)

    with scripted(script) as endpoint:
        subject = reader(endpoint.url)
        assert subject.read_each(keys) == [OBJECTS[key] for key in keys]
        sizes = [len(json.loads(asked.body)["objects"]) for asked in endpoint.asked[1:]]
        assert sizes == [10_000, 4_000]
        subject.close()


def test_an_endpoint_that_ignores_a_range_is_not_believed() -> None:
    with scripted(single) as endpoint:
        subject = reader(endpoint.url)
        with pytest.raises(RequestRefused, match="ranges"):
            subject.read("k3", "bytes=0-1")
        subject.close()
