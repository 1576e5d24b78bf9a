"""Batches over real processes: with tools a client has, and through the workers of a node."""

import io
import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.node.conftest import MakeNode
from tests.node.family import Family
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.s3.batch_reading import document, parse_frames
from tests.waiting import wait_until

CHANCE = random.Random(11)


@contextmanager
def asked(
    node: GatewayProcess, objects: list[Any], bucket: str = "train", **more: Any
) -> Iterator[urllib3.BaseHTTPResponse]:
    """The answer to a batch, its body still to come."""
    url = f"{node.endpoint_url}/{bucket}?feedrack-batch"
    body = document(objects, **more)
    request = AWSRequest("POST", url, data=body)
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request(
            "POST", url, body=body, headers=dict(request.headers.items()), preload_content=False
        )
        try:
            yield answer
        finally:
            answer.close()


def stock(node: GatewayProcess) -> dict[str, bytes]:
    """Objects of all sizes; every second one the node has not met yet."""
    client = node.client()
    client.create_bucket(Bucket="train")
    sizes = [0, 10, 4096, 65_536, 300_000, 1_500_000]
    bodies = {f"k{number:02}": CHANCE.randbytes(sizes[number % 6]) for number in range(36)}
    for number, (key, body) in enumerate(bodies.items()):
        if number % 2:
            client.put_object(Bucket="train", Key=key, Body=body)
        else:
            path = Path(node.settings["origins"]["main"]["path"]) / "train" / key
            path.write_bytes(body)
            os.utime(path, (time.time() - 3600,) * 2)
    return bodies


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_is_the_same_from_every_node(make_node: MakeNode, workers: int) -> None:
    node = make_node({"node": {"workers": workers}})
    bodies = stock(node)
    keys = [CHANCE.choice([*bodies, "missing"]) for _ in range(40)]
    for _ in range(2):
        with asked(node, keys, format="frames") as answer:
            frames, told = parse_frames(answer.read())
        assert told == {"objects": 40, "failed": keys.count("missing")}
        assert [frame.body for frame in frames] == [bodies.get(key, b"") for key in keys]
        with asked(node, keys) as answer, tarfile.open(fileobj=answer, mode="r|*") as archive:
            for key, member in zip(keys, archive, strict=True):
                content = archive.extractfile(member)
                assert content is not None
                assert (member.name, content.read()) == (key, bodies.get(key, b""))
    assert node.counter("feedrack_requests_total", operation="GetObjects", code="200") == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_leaves_ends_its_batch(make_node: MakeNode, workers: int) -> None:
    node = make_node({"node": {"workers": workers}})
    client = node.client()
    client.create_bucket(Bucket="train")
    folder = Path(node.settings["origins"]["main"]["path"]) / "train"
    for number in range(100):
        (folder / f"k{number:02}").write_bytes(bytes(2_000_000))
    with asked(node, [f"k{number:02}" for number in range(100)]) as answer:
        assert answer.status == 200
        answer.read(1000)
    wait_until(lambda: node.counter("feedrack_requests_in_flight") == 0)
    wait_until(lambda: node.counter("feedrack_fills_in_flight") == 0)
    assert node.counter("feedrack_requests_total", operation="GetObjects", code="broken") == 1
    assert node.counter("feedrack_origin_read_bytes_total") < 150_000_000


def test_a_batch_whose_keeper_dies_is_seen_to_be_cut_short(make_node: MakeNode) -> None:
    node = make_node({"node": {"workers": 2}})
    client = node.client()
    client.create_bucket(Bucket="train")
    client.put_object(Bucket="train", Key="k", Body=bytes(20_000_000))
    family = Family(node)
    with asked(node, ["k"] * 20, format="frames") as answer:
        begun = answer.read(1000)
        family.keeper.kill()
        with suppress(urllib3.exceptions.ProtocolError, OSError):
            while block := answer.read(1_000_000):
                begun += block
    assert parse_frames(begun)[1] is None
    # The next keeper answers as if nothing had been.
    wait_until(lambda: _status(node) == 200)


def _status(node: GatewayProcess) -> int:
    try:
        with asked(node, ["k"]) as answer:
            return answer.status if len(answer.read()) > 20_000_000 else 0
    except (urllib3.exceptions.HTTPError, OSError):
        return 0


def test_a_tar_can_be_unpacked_as_it_comes(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    bodies = stock(node)
    with (
        asked(node, [*bodies]) as answer,
        tarfile.open(fileobj=io.BytesIO(answer.read())) as archive,
    ):
        # The filter came with Python 3.11.4; the keys here are harmless without.
        how: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path / "out", **how)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == bodies


def test_the_page_s_example_reads_a_batch(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    bodies = stock(node)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    page = (Path(__file__).parents[2] / "docs/batch.md").read_text("utf-8")
    example: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], example)
    assert dict(example["read_batch"](node.endpoint_url, "train", [*bodies])) == bodies
    with pytest.raises(KeyError, match="NoSuchKey"):
        dict(example["read_batch"](node.endpoint_url, "train", ["missing"]))


def test_the_page_s_curl_gets_a_tar(
    make_node: MakeNode, require: Callable[[str, str | None], str]
) -> None:
    curl = require("curl", shutil.which("curl"))
    node = make_node()
    client = node.client()
    client.create_bucket(Bucket="train")
    for key in ("a.jpg", "b.jpg"):
        client.put_object(Bucket="train", Key=key, Body=key.encode())
    page = (Path(__file__).parents[2] / "docs/batch.md").read_text("utf-8")
    command = page.partition("```sh\n")[2].partition("```")[0]
    command = command.replace("curl", curl, 1).replace("http://127.0.0.1:9000", node.endpoint_url)
    environ = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, **environ}, capture_output=True, text=True
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["a.jpg", "b.jpg"], done
