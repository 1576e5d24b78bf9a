"""The command as a process: its words and exit statuses, kill -9 at any point, two at once."""

import io
import json
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from packer.format import Place
from packer.inputs import masked_crc
from packer.progress import Silent
from packer.verify import verify_pack
from tests.packer.conftest import Bucket
from tests.packer.test_pack import filled, listed, packed_bytes, records

PACKER = Path(sys.executable).parent / "packer"


@pytest.fixture
def bucket(served_bucket: Bucket) -> Bucket:
    """A bucket that a process can reach."""
    return served_bucket


def command(bucket: Bucket, *arguments: object, spool: str = "cli") -> list[str]:
    verb, *rest = map(str, arguments)
    return [
        str(PACKER),
        verb,
        f"s3://{bucket.name}/p/",
        *rest,
        *("--endpoint-url", bucket.endpoint_url),
        *("--spool", str(bucket.folder / spool)),
    ]


def run(bucket: Bucket, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(bucket, *arguments), capture_output=True, text=True)


def told(bucket: Bucket, *arguments: object) -> Any:
    done = run(bucket, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_pack_from_first_to_last(bucket: Bucket) -> None:
    objects = filled(bucket)
    dry = run(bucket, "pack", "--dry-run", "--shard-size", "64KiB")
    assert dry.returncode == 0, dry.stderr
    assert re.search(r"would read 60 objects .* into \d shards", dry.stdout)
    assert re.search(r"60 before, \d after", dry.stdout)
    assert re.search(r"60 objects \(.*\) fewer in the bucket", dry.stdout)
    assert told(bucket, "pack", "--settle", 0)["report"]["packed_objects"] == 60
    assert told(bucket, "verify")["objects"] == 60
    keys = run(bucket, "ls", "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in keys] == sorted(objects)
    packs = subprocess.run(
        [PACKER, "ls", f"s3://{bucket.name}", *command(bucket, "ls")[3:]],
        capture_output=True,
        text=True,
    )
    assert packs.stdout.startswith(f"s3://{bucket.name}/p/  whole  60 objects")
    out = bucket.folder / "out"
    assert told(bucket, "unpack", "--to", out)["objects"] == 60
    assert (out / "0" / "000.bin").read_bytes() == objects["p/0/000.bin"]
    assert run(bucket, "drop").returncode == 0
    gone = run(bucket, "verify")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("packer: no pack of")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "--order", "backwards"),
        ("pack", "--order", "file:/none"),
        ("pack", "--shard-size", "0"),
        ("pack", "--shard-size", "many"),
        ("pack", "--jobs", "0"),
        ("pack", "--largest", "65MiB"),
        ("pack", "--dry-run", "--delete-originals"),
        ("pack", "--from", "webdataset", "--delete-originals"),
        ("unpack", "--to-webdataset"),
        ("unpack", "--replace"),
        ("verify", "--what"),
    ],
)
def test_wrong_use_is_status_2(arguments: tuple[str, ...], s3_bucket: Bucket) -> None:
    done = run(s3_bucket, *arguments)
    assert done.returncode == 2, done.stderr
    assert "Usage" in done.stderr or "Error" in done.stderr


@pytest.mark.parametrize("url", ["bucket/prefix", "http://bucket/p", "s3://"])
def test_what_is_no_dataset_is_status_2(url: str) -> None:
    assert subprocess.run([PACKER, "pack", url], capture_output=True).returncode == 2


def test_failures_are_a_line_and_status_1(s3_bucket: Bucket) -> None:
    nobody = ["--endpoint-url", "file:///none"]
    done = subprocess.run([PACKER, "pack", "s3://b/p", *nobody], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "packer: no bucket b in /none\n")
    done = subprocess.run(
        [PACKER, "pack", "s3://none-such/p", "--endpoint-url", s3_bucket.endpoint_url],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "there is no bucket none-such" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_point_and_resumed_it_redoes_at_most_a_shard(
    bucket: Bucket, seed: int
) -> None:
    chance = random.Random(seed)
    objects = {f"p/{number:04}": chance.randbytes(chance.randrange(3000)) for number in range(240)}
    for key, data in objects.items():
        bucket.put(key, data)
    way = ("pack", "--settle", 0, "--shard-size", "32KiB", "--jobs", 2, "--json", "--resume")
    kills = 0
    sealed = 0
    # Where the process is not killed by its clock it gets to its end; at first it is, however fast
    # the machine.
    delay = chance.uniform(0.05, 0.15)
    while True:
        process = subprocess.Popen(
            command(bucket, *way),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            said, errors = process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            delay *= chance.uniform(1.0, 1.6)
            now = len([key for key in bucket.keys(Place("p/").building) if key.endswith(".run")])
            sealed = max(sealed, now)
            continue
        break
    assert process.returncode == 0, errors
    report = json.loads(said)["report"]
    if report["changed"]:
        # All that was done is taken: at most the shard under way when the last kill came is not.
        assert report["resumed_shards"] >= sealed
    assert kills
    assert packed_bytes(bucket) == objects
    assert verify_pack(bucket.store, Place("p/"), bucket.folder, Silent()).damaged_count == 0
    assert not bucket.keys(Place("p/").building)
    assert Place("p/").lock not in set(bucket.keys())


def test_two_at_once_make_one_pack(bucket: Bucket) -> None:
    objects = filled(bucket, 200)
    processes = [
        subprocess.Popen(
            command(bucket, "pack", "--settle", 0, spool=f"spool{number}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(3)
    ]
    results = [(process.communicate(), process.returncode) for process in processes]
    assert 0 in [status for _, status in results]
    for (_, errors), status in results:
        assert status == 0 or b"packs here" in errors or b"take and leave" in errors, errors
    assert packed_bytes(bucket) == objects


def test_a_first_pack_waits_until_gateways_have_taken_notice(s3_bucket: Bucket) -> None:
    filled(s3_bucket, 3)
    begun = time.monotonic()
    done = run(s3_bucket, "pack", "--settle", 2)
    assert time.monotonic() - begun >= 1
    assert "until every gateway" in done.stderr
    while time.monotonic() - begun < 5:
        # Whoever comes while the first notice is fresh has to wait for the rest of it.
        time.sleep(0.05)
    filled(s3_bucket, 4)
    assert "until every gateway" not in run(s3_bucket, "pack", "--settle", 2).stderr


def tar_of(path: Path, members: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def test_tars_become_objects_and_objects_tars(bucket: Bucket, tmp_path: Path) -> None:
    members = {
        f"{number:03}.{kind}": f"{number}{kind}".encode() * number
        for number in range(30)
        for kind in ("cls", "jpg")
    }
    bucket.put("p/x.tar", tar_of(tmp_path / "x.tar", members))
    bucket.put("p/y.tar", tar_of(tmp_path / "y.tar", {"only": b"1"}))
    way = ("pack", "--from", "webdataset", "--settle", 0)
    assert told(bucket, *way)["report"]["packed_objects"] == 61
    expected = {f"p/x/{name}": data for name, data in members.items()} | {"p/y/only": b"1"}
    assert packed_bytes(bucket) == expected
    assert records(bucket)["p/x.tar"].shard is None
    # A tar that has changed is read again, and what it has lost goes.
    del members["000.cls"]
    bucket.put("p/x.tar", tar_of(tmp_path / "x.tar", members))
    told(bucket, *way)
    del expected["p/x/000.cls"]
    assert packed_bytes(bucket) == expected
    out = tmp_path / "tars"
    told(bucket, "unpack", "--to-webdataset", "--to", out, "--tar-size", 500)
    found: dict[str, bytes] = {}
    tars = sorted(out.iterdir())
    assert len(tars) > 3
    for path in tars:
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
            names = archive.getnames()
        # A sample is in one tar.
        for other in tars:
            if other != path:
                with tarfile.open(other) as archive:
                    samples = {name.partition(".")[0] for name in archive.getnames()}
                assert not samples & {name.partition(".")[0] for name in names}
    assert {f"p/{name}": data for name, data in found.items() if not name.endswith(".tar")} == (
        expected
    )


def record_of(data: bytes) -> bytes:
    length = len(data).to_bytes(8, "little")
    crcs = [masked_crc(part).to_bytes(4, "little") for part in (length, data)]
    return length + crcs[0] + data + crcs[1]


def test_a_member_whose_name_is_no_key_is_left_out(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name in ("fine", "né"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    bucket.put("p/x.tar", path.read_bytes())
    report = told(bucket, "pack", "--from", "webdataset", "--settle", 0)["report"]
    assert [item["reason"] for item in report["left_out"]] == ["its name is not UTF-8"]
    assert set(packed_bytes(bucket)) == {"p/x/fine"}


def test_tfrecords_become_objects(bucket: Bucket) -> None:
    datas = [b"", b"a", bytes(70_000)]
    bucket.put("p/train.tfrecord", b"".join(map(record_of, datas)))
    bucket.put("p/bad.tfrecord", record_of(b"good") + record_of(b"bad")[:-1] + b"x")
    report = told(bucket, "pack", "--from", "tfrecord", "--settle", 0)["report"]
    assert [item["key"] for item in report["left_out"]] == ["p/bad.tfrecord"]
    expected = {f"p/train/{n:08}.tfrecord-data": data for n, data in enumerate(datas)}
    assert packed_bytes(bucket) == expected | {"p/bad/00000000.tfrecord-data": b"good"}


def test_tensorflows_own_checksum_is_ours() -> None:
    # The masked CRC-32C of eight zero bytes, as in every empty record's head.
    assert masked_crc(bytes(8)).to_bytes(4, "little").hex() == "29039807"


def test_originals_go_and_come_back(s3_bucket: Bucket) -> None:
    objects = filled(s3_bucket)
    found = told(s3_bucket, "pack", "--settle", 0, "--delete-originals")
    assert found["deleted_originals"]["objects"] == 60
    assert not listed(s3_bucket)
    refused = run(s3_bucket, "drop")
    assert refused.returncode == 1
    assert "60 objects are in the pack alone" in refused.stderr
    assert told(s3_bucket, "unpack")["objects"] == 60
    assert {key: s3_bucket.store.get(key).data for key in listed(s3_bucket)} == objects
    assert run(s3_bucket, "drop").returncode == 0
