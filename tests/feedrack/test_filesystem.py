"""fsspec's callers find buckets and keys as in any filesystem, and many at once in one request."""

import pickle
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from feedrack.filesystem import FeedrackFileSystem
from tests.feedrack.conftest import OBJECTS, Served
from tests.feedrack.endpoint import Asked, Reply, batch_reply, scripted
from tests.node.process import ACCESS_KEY, SECRET_KEY

KEYS = sorted(OBJECTS, key=str.encode)
PATHS = [f"train/{key}" for key in KEYS]


@pytest.fixture
def fs(served: Served) -> Iterator[FeedrackFileSystem]:
    found = FeedrackFileSystem(
        served.url, "us-east-1", access_key=ACCESS_KEY, secret_key=SECRET_KEY
    )
    yield found
    FeedrackFileSystem.clear_instance_cache()


def test_it_is_known_by_its_protocol() -> None:
    assert fsspec.get_filesystem_class("feedrack") is FeedrackFileSystem


def test_files_are_opened_read_and_sought_in(fs: FeedrackFileSystem) -> None:
    data = OBJECTS[KEYS[30]]
    with fs.open(f"feedrack://{PATHS[30]}", "rb", block_size=50) as file:
        assert file.size == len(data)
        assert file.read(10) == data[:10]
        file.seek(-5, 2)
        assert file.read() == data[-5:]
        file.seek(100)
        assert file.read() == data[100:]
    with pytest.raises(NotImplementedError, match="read-only"):
        fs.open(PATHS[0], "wb")
    with pytest.raises(FileNotFoundError):
        fs.open("train/p/none")


def test_a_file_that_is_replaced_is_not_read_on(served: Served, fs: FeedrackFileSystem) -> None:
    served.s3.put_object(Bucket="train", Key="changing", Body=b"a" * 1000)
    try:
        with fs.open("train/changing", block_size=100, cache_type="none") as file:
            assert file.read(10) == b"a" * 10
            served.s3.put_object(Bucket="train", Key="changing", Body=b"b" * 1000)
            with pytest.raises(OSError, match="replaced"):
                file.read(10)
    finally:
        served.s3.delete_object(Bucket="train", Key="changing")


def test_folders_are_listed_as_in_any_filesystem(fs: FeedrackFileSystem) -> None:
    assert fs.ls("train", detail=False) == ["train/p", "train/q"]
    found = fs.ls("train/p/001")
    assert [one["name"] for one in found] == ["train/p/001/ü 1.bin"]
    assert found[0]["size"] == 7
    assert fs.ls("train/q/1", detail=False) == ["train/q/1"]
    with pytest.raises(FileNotFoundError):
        fs.ls("train/none")
    with pytest.raises(FileNotFoundError):
        fs.ls("nobody/x")
    assert fs.find("train/p") == PATHS
    assert fs.find("train/q/1") == ["train/q/1"]
    assert "train/p/000" in fs.find("train/p", maxdepth=1, withdirs=True)
    assert fs.glob("train/p/00*/*.bin") == PATHS[:10]
    assert fs.isdir("train/p")
    assert fs.isfile(PATHS[0])
    assert not fs.exists("train/none")
    assert fs.info("train")["type"] == "directory"
    assert fs.ukey(PATHS[1]) == fs.info(PATHS[1])["ETag"]
    assert fs.modified(PATHS[1]).tzinfo is not None


def test_many_paths_are_read_at_once(fs: FeedrackFileSystem) -> None:
    assert fs.cat(PATHS[3]) == OBJECTS[KEYS[3]]
    assert fs.cat(PATHS) == dict(zip(PATHS, OBJECTS.values(), strict=True))
    assert fs.cat("train/p/00*/*.bin") == {
        path: OBJECTS[key] for path, key in zip(PATHS[:10], KEYS, strict=False)
    }
    assert fs.cat([*PATHS[:2], "train/none"], on_error="omit") == fs.cat(PATHS[:2])
    returned = fs.cat([PATHS[0], "train/none"], on_error="return")
    assert isinstance(returned["train/none"], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat([PATHS[0], "train/none"])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, None),
        (0, 5),
        (3, None),
        (3, 3),
        (5, 3),
        (-4, None),
        (2, -2),
        (10**6, None),
        (0, 10**6),
    ],
)
def test_ranges_are_those_of_a_slice(
    fs: FeedrackFileSystem, start: int | None, end: int | None
) -> None:
    expected = OBJECTS[KEYS[20]][slice(start, end)]
    assert fs.cat_file(PATHS[20], start, end) == expected
    assert fs.cat_ranges([PATHS[20], PATHS[20]], [start, 0], [end, 2]) == [
        expected,
        OBJECTS[KEYS[20]][:2],
    ]


def test_it_survives_a_pickle(fs: FeedrackFileSystem) -> None:
    assert pickle.loads(pickle.dumps(fs)).cat(PATHS[1]) == OBJECTS[KEYS[1]]
    assert SECRET_KEY not in repr(fs)


def test_cat_of_many_is_one_request_where_a_gateway_answers() -> None:
    def script(asked: Asked) -> Reply:
        if asked.method == "POST":
            return batch_reply(asked, {"a": b"A", "b": b"B"})
        return Reply(200, b"", {"x-feedrack-node": "n1"})

    options: dict[str, Any] = {"anonymous": True, "skip_instance_cache": True}
    with scripted(script) as endpoint:
        fs = FeedrackFileSystem(endpoint.url, **options)
        assert fs.cat(["train/a", "train/b"]) == {"train/a": b"A", "train/b": b"B"}
        assert [asked.method for asked in endpoint.asked] == ["HEAD", "POST"]
        for reader in fs._readers.values():
            reader.close()
