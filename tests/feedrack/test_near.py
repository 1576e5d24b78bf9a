"""On the data's own node objects come out of mapped shards, and never one that was replaced."""

import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from feedrack import MissingObject, Unavailable
from feedrack.handed import NotHere, ask_offer, fetch
from feedrack.offer import Offer
from tests.feedrack.conftest import Served
from tests.feedrack.packed import KEYS, OBJECTS, PackedNode, is_near
from tests.feedrack.test_processes import share_out
from tests.waiting import wait_until

EVERYTHING = list(OBJECTS.values())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedNode]:
    """A node for tests that leave it as it is."""
    node = PackedNode(tmp_path_factory.mktemp("kept"))
    yield node
    node.close()


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedNode]:
    """A node for one test."""
    node = PackedNode(tmp_path_factory.mktemp("own"))
    yield node
    node.close()


def test_what_is_mapped_is_read_without_a_request(kept: PackedNode) -> None:
    with kept.warm() as dataset:
        before = kept.requests()
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING
        assert dataset[7] == OBJECTS[KEYS[7]]
        assert dataset[KEYS[8]] == OBJECTS[KEYS[8]]
        assert dataset[-1] == OBJECTS[KEYS[-1]]
        assert [data for _, data in dataset.items("shuffled:1")] != EVERYTHING
        assert kept.requests() == before
        with pytest.raises(IndexError):
            dataset.read_batch([0, len(KEYS)])
        with pytest.raises(MissingObject):
            dataset.read_batch([KEYS[0], "p/none"])


def test_views_are_of_the_map_where_there_is_one(kept: PackedNode) -> None:
    with kept.warm() as dataset:
        before = kept.requests()
        views = dataset.view_batch([3, KEYS[4], -1])
        assert views == [EVERYTHING[3], EVERYTHING[4], EVERYTHING[-1]]
        assert all(view.readonly for view in views)
        assert kept.requests() == before
    # Held longer than the dataset.
    assert views[0] == EVERYTHING[3]
    with kept.open(short_circuit=False) as dataset:
        assert dataset.view_batch(range(3)) == EVERYTHING[:3]


def test_a_part_of_a_pack_is_mapped_as_well(kept: PackedNode) -> None:
    with kept.warm(prefix="p/1") as dataset:
        assert dataset.read_batch(range(len(dataset))) == EVERYTHING[100:200]


def test_a_reader_that_wants_none_of_it_has_none(kept: PackedNode) -> None:
    with kept.open(short_circuit=False) as dataset:
        assert dataset.near is None
        assert dataset.read_batch(range(3)) == EVERYTHING[:3]


def test_elsewhere_there_is_nothing_to_map(at_moto: Served) -> None:
    with at_moto.open() as dataset:
        assert dataset.near is not None
        assert dataset.near.read([0]) is None


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_map_what_their_parent_does(kept: PackedNode, method: str) -> None:
    with kept.warm() as dataset:
        before = kept.requests()
        share_out(dataset, method, 16 if method == "fork" else 2, EVERYTHING)
        assert kept.requests() == before


def test_a_pickle_carries_where_things_lie(kept: PackedNode) -> None:
    with kept.warm() as dataset, pickle.loads(pickle.dumps(dataset)) as other:
        assert dataset.near is not None
        assert other.near.catalog is not None
        assert dataset.near.catalog is not None
        assert other.near.catalog.packs == dataset.near.catalog.packs
        before = kept.requests()
        assert other.read_batch(range(len(KEYS))) == EVERYTHING
        assert kept.requests() == before


def test_what_is_written_is_read_at_once_and_the_rest_stays_near(own: PackedNode) -> None:
    with own.warm() as dataset:
        own.put(KEYS[5], b"new")
        assert dataset[5] == b"new"
        own.s3.delete_object(Bucket="train", Key=KEYS[6])
        with pytest.raises(MissingObject):
            dataset.read_batch([4, 5, 6])
        wait_until(lambda: is_near(dataset))
        assert dataset.near is not None
        assert dataset.near.read([4, 5, 6, 7]) == [EVERYTHING[4], None, None, EVERYTHING[7]]
        assert dataset.read_batch([4, 5, 7]) == [EVERYTHING[4], b"new", EVERYTHING[7]]
        own.put(KEYS[6], b"back")
        assert dataset.read_batch([5, 6]) == [b"new", b"back"]


def test_no_read_is_older_than_the_last_write_that_was_answered(own: PackedNode) -> None:
    """Writers and readers at once: what a reader finds was not replaced before it asked."""
    answered = dict.fromkeys(KEYS[:4], 0)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            least = dict(answered)
            for key, data in zip(answered, dataset.read_batch(range(4)), strict=True):
                found = int(data) if len(data) < 100 else 0
                if found < least[key]:
                    wrong.append((key, found, least[key]))

    with own.warm() as dataset:
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, 40):
            key = KEYS[number % 4]
            own.put(key, b"%d" % number)
            answered[key] = number
            if number % 10 == 0:
                wait_until(lambda: is_near(dataset))
        done.set()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_gateway_that_is_killed_is_believed_for_a_moment_only(own: PackedNode) -> None:
    with own.warm(attempts=1) as dataset:
        own.process.kill()
        wait_until(lambda: not is_near(dataset))
        with pytest.raises(Unavailable):
            dataset.read_batch([1, 2])
        own.process.start()
        assert dataset.read_batch([1, 2]) == EVERYTHING[1:3]
        wait_until(lambda: is_near(dataset))
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING


def test_a_write_through_the_next_gateway_is_not_missed(own: PackedNode) -> None:
    with own.warm() as dataset:
        for number in range(3):
            assert is_near(dataset)
            own.process.kill()
            own.process.start()
            own.put(KEYS[number], b"after %d" % number)
            assert dataset[number] == b"after %d" % number
            wait_until(lambda: is_near(dataset))


def test_a_gateway_that_is_frozen_is_believed_for_a_moment_only(own: PackedNode) -> None:
    with own.warm() as dataset:
        os.kill(own.process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not is_near(dataset))
        finally:
            os.kill(own.process.pid, signal.SIGCONT)
        wait_until(lambda: is_near(dataset))
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING


def test_a_gateway_that_stops_in_peace_takes_back_what_it_said(own: PackedNode) -> None:
    with own.warm(attempts=1) as dataset:
        assert own.process.stop() == 0
        assert dataset.near is not None
        assert dataset.near.read([0]) is None


def test_a_new_pack_is_taken_over(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"buckets": {"train": {"freshness_seconds": 1}}}
    node = PackedNode(tmp_path_factory.mktemp("again"), settings)
    try:
        with node.warm() as dataset:
            # As many as make a shard that is no small object.
            for key in KEYS[300:]:
                node.put_behind(key, b"behind" * 1000)
            node.pack()
            assert dataset.near is not None
            near = dataset.near

            def taken_over() -> bool:
                catalog = near.catalog
                dataset.read_batch(range(len(KEYS)))
                near.ask()
                generations = [pack.generation for pack in catalog.packs] if catalog else []
                return generations == [3] and (near.read([310]) or [None])[0] is not None

            wait_until(taken_over)
            assert near.read([310, 10]) == [b"behind" * 1000, EVERYTHING[10]]
            node.drop()
            wait_until(lambda: near.read([0]) is None)
            node.put(KEYS[10], b"newer")
            assert dataset.read_batch([310, 10, 11]) == [
                b"behind" * 1000,
                b"newer",
                EVERYTHING[11],
            ]
    finally:
        node.close()


def test_what_a_node_cannot_confirm_is_not_believed_beyond_the_freshness(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"buckets": {"train": {"freshness_seconds": 2}}}
    node = PackedNode(tmp_path_factory.mktemp("lost"), settings)
    origin, away = node.folder / "origin", node.folder / "away"
    try:
        with node.warm() as dataset:
            assert is_near(dataset)
            origin.rename(away)
            wait_until(lambda: not is_near(dataset))
            away.rename(origin)
            wait_until(lambda: is_near(dataset))
            assert dataset.read_batch(range(len(KEYS))) == EVERYTHING
    finally:
        node.close()


def test_a_bucket_without_freshness_is_always_asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    node = PackedNode(
        tmp_path_factory.mktemp("strict"), {"buckets": {"train": {"freshness_seconds": 0}}}
    )
    try:
        with node.open() as dataset:
            assert dataset.read_batch(range(3)) == EVERYTHING[:3]
            assert not is_near(dataset)
    finally:
        node.close()


def test_what_is_evicted_stays_with_who_has_it_mapped(own: PackedNode) -> None:
    with own.warm() as dataset:
        shards = _shard_files(own)
        for path in shards:
            path.unlink()
        assert dataset.near is not None
        assert dataset.near.read(range(len(KEYS))) == EVERYTHING


def test_a_shard_that_is_damaged_is_not_handed_over(own: PackedNode) -> None:
    with own.open() as dataset:
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING
    # Not at an object's bytes that its readers would ask for first.
    for path in _shard_files(own):
        raw = bytearray(path.read_bytes())
        raw[200_000] ^= 1
        path.write_bytes(raw)
    with own.open() as dataset:
        assert dataset.near is not None
        dataset.near.ask()
        assert dataset.near.read(range(3)) in (None, [None, None, None])
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING


def test_bytes_that_went_bad_under_the_map_are_asked_for(own: PackedNode) -> None:
    with own.warm() as dataset:
        for path in _shard_files(own):
            with path.open("r+b") as file:
                file.seek(200_000)
                file.write(b"\0" * 5000)
        assert dataset.near is not None
        found = dataset.near.read(range(len(KEYS)))
        assert found is not None
        assert None in found
        assert dataset.read_batch(range(len(KEYS))) == EVERYTHING


def _shard_files(node: PackedNode) -> list:  # type: ignore[type-arg]
    found = [
        path
        for path in (node.folder / "cache" / "chunks").rglob("*")
        if path.is_file() and path.stat().st_size > 256 * 1024
    ]
    assert found
    return found


def _offer(node: PackedNode) -> Offer:
    with node.open() as dataset:
        offer = ask_offer(dataset._reader.client, "p/")
    assert offer is not None
    return offer


def test_a_token_is_good_once(kept: PackedNode) -> None:
    offer = _offer(kept)
    page = offer.packs[0].page
    for file in fetch(offer, [page]):
        assert file.name == page
        os.close(file.descriptor)
    for token in (offer.token, "0" * 64, ""):
        with pytest.raises(NotHere):
            list(fetch(msgspec.structs.replace(offer, token=token), [page]))


def test_only_what_was_offered_is_handed_over(kept: PackedNode) -> None:
    assert list(fetch(_offer(kept), ["0" * 64, "../../secret"])) == []


def test_a_page_cannot_be_written_to(kept: PackedNode) -> None:
    offer = _offer(kept)
    [file] = fetch(offer, [offer.packs[0].page])
    with pytest.raises(PermissionError):
        os.write(file.descriptor, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(file.descriptor, 1)
    os.close(file.descriptor)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"x" * 70_000, b'{"token": 1, "names": []}'])
def test_nonsense_is_hung_up_on(kept: PackedNode, raw: bytes) -> None:
    offer = _offer(kept)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wire:
        wire.settimeout(60)
        wire.connect("\0" + offer.socket)
        wire.send(raw)
        assert wire.recv(10) == b""


def test_a_socket_of_somebody_else_is_not_believed(kept: PackedNode) -> None:
    offer = msgspec.structs.replace(_offer(kept), uid=os.getuid() + 1)
    with pytest.raises(NotHere, match="somebody"):
        list(fetch(offer, [offer.packs[0].page]))


READERS: list[tuple[list[dict[str, list[str]]], bool]] = [
    ([{"allow": ["*"], "buckets": ["train"]}], True),
    ([{"allow": ["Get*", "List*"], "buckets": ["train", "train/p/*"]}], True),
    (
        [
            {"allow": ["List*"], "buckets": ["train"]},
            {"allow": ["Get*"], "buckets": ["train/p/0*"]},
        ],
        False,
    ),
    (
        [
            {"allow": ["*"], "buckets": ["*"]},
            {"deny": ["GetObject"], "buckets": ["train/p/39*"]},
        ],
        False,
    ),
    (
        [{"allow": ["*"], "buckets": ["*"]}, {"deny": ["GetObject"], "buckets": ["train/q/*"]}],
        True,
    ),
    ([{"allow": ["GetObject", "List*"], "buckets": ["train"]}], False),
]


def test_only_who_may_read_all_of_a_pack_is_offered_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("limited")
    (folder / "limited").write_text("limited-secret")
    tenants = [
        {
            "name": f"reader-{number}",
            "access_key": f"reader-{number}",
            "secret_key_file": str(folder / "limited"),
            "policy": rules,
        }
        for number, (rules, _) in enumerate(READERS)
    ]
    node = PackedNode(folder, {"tenants": tenants})
    try:
        for number, (_, offered) in enumerate(READERS):
            keys = {"access_key": f"reader-{number}", "secret_key": "limited-secret"}
            with node.open(**keys) as dataset:
                found = ask_offer(dataset._reader.client, "p/")
                assert (found is not None) == offered, READERS[number]
                assert dataset.read_batch([3, 4]) == EVERYTHING[3:5]
    finally:
        node.close()


def test_workers_of_a_node_hand_over_what_their_keeper_holds(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    node = PackedNode(tmp_path_factory.mktemp("family"), {"node": {"workers": 2}})
    try:
        with node.warm() as dataset:
            before = node.requests()
            assert dataset.read_batch(range(len(KEYS))) == EVERYTHING
            assert node.requests() == before
            for number in range(10):
                node.put(KEYS[number], b"new %d" % number)
                assert dataset[number] == b"new %d" % number
            wait_until(lambda: is_near(dataset))
            assert dataset.read_batch(range(10)) == [b"new %d" % number for number in range(10)]
    finally:
        assert node.process.stop() == 0
        node.s3.close()
