"""A node of several workers answers as one: what was written is seen, what is cold is fetched once,
and what is held needs no keeper."""

import concurrent.futures
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import REPLY_HEADER
from tests.node.conftest import MakeNode
from tests.node.family import Client, Family, public
from tests.node.test_running import _ask
from tests.waiting import wait_until

CHUNK_BYTES = 1024 * 1024


def test_what_is_held_is_answered_by_every_worker_while_the_keeper_stands_still(
    make_node: MakeNode,
) -> None:
    node = make_node(public(mutable={"freshness_seconds": 600}, fixed={"immutable": True}))
    family = Family(node)
    client = node.client()
    bodies = {"small": b"s" * 5000, "large": random.Random(1).randbytes(3_000_000), "empty": b""}
    for bucket in ("mutable", "fixed"):
        client.create_bucket(Bucket=bucket)
        for key, body in bodies.items():
            client.put_object(Bucket=bucket, Key=key, Body=body)
            family.hold(f"/{bucket}/{key}")
    with family.clients() as clients:
        family.keeper.suspend()
        try:
            for each in clients:
                for bucket in ("mutable", "fixed"):
                    for key, body in bodies.items():
                        assert each.get(f"/{bucket}/{key}")[:2] == (200, body)
                    found = each.get(f"/{bucket}/large", Range="bytes=999999-2000001")
                    assert found[:2] == (206, bodies["large"][999_999:2_000_002])
        finally:
            family.keeper.resume()
    assert node.origin_gets() == 0


def test_an_immutable_bucket_is_believed_by_the_index_after_a_restart(make_node: MakeNode) -> None:
    node = make_node(public(fixed={"immutable": True}))
    node.client().create_bucket(Bucket="fixed")
    node.client().put_object(Bucket="fixed", Key="k", Body=b"forever")
    Family(node).hold("/fixed/k")
    assert node.stop() == 0
    node.start()
    family = Family(node)
    with family.clients() as clients:
        family.keeper.suspend()
        try:
            for client in clients:
                assert client.get("/fixed/k")[:2] == (200, b"forever")
        finally:
            family.keeper.resume()


def test_a_cold_object_is_fetched_once_for_48_clients_of_two_workers(make_node: MakeNode) -> None:
    node = make_node(public(cold={"freshness_seconds": 600}))
    body = random.Random(2).randbytes(8 * CHUNK_BYTES + 1000)
    node.client().create_bucket(Bucket="cold")
    path = Path(node.settings["origins"]["main"]["path"]) / "cold/k"
    path.write_bytes(body)
    # What has only just been written may be written again unseen, so it would not be kept.
    os.utime(path, (time.time() - 3600,) * 2)
    with Family(node).clients(each=24) as clients:
        start = threading.Barrier(len(clients))

        def read(client: Client) -> bytes:
            start.wait()
            return client.get("/cold/k")[1]

        with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
            assert all(found == body for found in pool.map(read, clients))
    assert node.origin_gets() == 9
    assert node.counter("feedrack_origin_read_bytes_total") == len(body)


@pytest.mark.parametrize("kind", ["mutable", "immutable", "immutable by another name"])
def test_an_answered_write_is_seen_at_once_through_every_worker(
    make_node: MakeNode, kind: str
) -> None:
    told: dict[str, Any] = {"immutable": True} if "immutable" in kind else {"freshness_seconds": 60}
    settings = public(box=told, other={"origin_bucket": "box", "freshness_seconds": 60})
    node = make_node(settings)
    client = node.client()
    client.create_bucket(Bucket="box")
    written = "other" if kind == "immutable by another name" else "box"
    with Family(node).clients(each=2) as clients:
        for number in range(60):
            # Small and large ones by turns; deleted now and then.
            body = f"{number} ".encode() * random.Random(number).choice((10, 40_000, 400_000))
            etag = client.put_object(Bucket=written, Key="k", Body=body)["ETag"]
            for _ in range(2):
                for each in clients:
                    status, headers = each.head("/box/k")
                    assert (status, headers["etag"]) == (200, etag), (number, headers)
                    assert headers["content-length"] == str(len(body))
                    status, found, headers = each.get("/box/k")
                    assert (status, found == body) == (200, True), (number, headers)
                    assert headers["etag"] == etag
            if number % 10 == 9:
                client.delete_object(Bucket=written, Key="k")
                assert [each.head("/box/k")[0] for each in clients] == [404] * len(clients)
                assert [each.get("/box/k")[0] for each in clients] == [404] * len(clients)


def test_a_read_that_meets_an_overwrite_has_one_version_and_never_goes_back(
    make_node: MakeNode,
) -> None:
    node = make_node(public(mutable={"freshness_seconds": 60}, fixed={"immutable": True}))
    client = node.client()
    for bucket in ("mutable", "fixed"):
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key="k", Body=b"0 " * 200_000)
    answered = {"mutable": 0, "fixed": 0}
    wrong: list[str] = []
    over = threading.Event()

    def read(reader: Client, bucket: str) -> None:
        while not over.is_set():
            oldest = answered[bucket]
            status, body, _ = reader.get(f"/{bucket}/k")
            number = body[: body.index(b" ")]
            if status != 200 or body != number + body[len(number) :] or len(set(body.split())) != 1:
                wrong.append(f"{status}: a mixture of {set(body.split())}")
            if int(number) < oldest:
                wrong.append(f"{bucket}: {int(number)} was read after {oldest} was answered")

    with Family(node).clients(each=2) as clients:
        threads = [
            threading.Thread(target=read, args=(each, ("mutable", "fixed")[n % 2]))
            for n, each in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for number in range(1, 60):
            for bucket in answered:
                body = f"{number} ".encode() * 200_000
                client.put_object(Bucket=bucket, Key="k", Body=body)
                answered[bucket] = number
        over.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not wrong, wrong[:5]


def test_a_request_with_a_token_is_the_keepers(make_node: MakeNode) -> None:
    node = make_node(public(load={"freshness_seconds": 600}))
    client = node.client()
    client.create_bucket(Bucket="load")
    client.put_object(Bucket="load", Key="k", Body=b"held")

    def name_memory(request: Any, **_: Any) -> None:
        request.headers[TOKEN_HEADER] = f"frdma1:{'0' * 32}:0:1000:1000:1"

    client.meta.events.register("before-sign.s3.GetObject", name_memory)
    for _ in range(8):
        # Where there is no such session it is declined; a worker would not have known to say so.
        found = client.get_object(Bucket="load", Key="k")
        assert found["Body"].read() == b"held"
        assert found["ResponseMetadata"]["HTTPHeaders"][REPLY_HEADER] == "501"
    client.close()


def test_boto3_does_all_it_does_with_one_process(make_node: MakeNode) -> None:
    node = make_node(public())
    client = node.client()
    client.create_bucket(Bucket="all")
    large = random.Random(3).randbytes(12 * CHUNK_BYTES + 5)
    client.put_object(Bucket="all", Key="large", Body=large)
    assert client.get_object(Bucket="all", Key="large")["Body"].read() == large
    upload = client.create_multipart_upload(Bucket="all", Key="parts")["UploadId"]
    parts = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(
                Bucket="all", Key="parts", UploadId=upload, PartNumber=number, Body=part
            )["ETag"],
        }
        for number, part in enumerate((large[: 5 << 20], large[5 << 20 :]), 1)
    ]
    client.complete_multipart_upload(
        Bucket="all", Key="parts", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    assert client.get_object(Bucket="all", Key="parts")["Body"].read() == large
    client.copy_object(Bucket="all", Key="copy", CopySource="all/large")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="all")["Contents"]]
    assert keys == ["copy", "large", "parts"]
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket="all", Key="none")
    assert client.head_object(Bucket="all", Key="copy")["ContentLength"] == len(large)
    client.delete_objects(Bucket="all", Delete={"Objects": [{"Key": key} for key in keys]})
    assert "Contents" not in client.list_objects_v2(Bucket="all")


def test_uploads_and_reads_at_once_through_tunnels_keep_their_bytes(make_node: MakeNode) -> None:
    node = make_node(public())
    client = node.client()
    client.create_bucket(Bucket="busy")

    def work(number: int) -> bool:
        body = random.Random(number).randbytes(number * 300_000 + number)
        client.put_object(Bucket="busy", Key=f"k{number}", Body=body)
        found: bytes = client.get_object(Bucket="busy", Key=f"k{number}")["Body"].read()
        part = client.get_object(Bucket="busy", Key=f"k{number}", Range="bytes=10-99999")
        return found == body and part["Body"].read() == body[10:100_000]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(1, 33)))


def test_the_limit_on_connections_is_the_nodes(make_node: MakeNode) -> None:
    node = make_node({**public(full={}), "s3": {"limits": {"connections": 8}}})
    client = node.client()
    client.create_bucket(Bucket="full")
    client.close()
    for _ in range(3):
        wait_until(lambda: node.counter("feedrack_connections") == 0)
        clients = [Client(node) for _ in range(9)]
        for client in clients[:8]:
            client.connect()
            assert client.get("/full/none")[0] == 404
        # All that there may be are there.
        status, body, _ = clients[8].get("/full/none")
        assert (status, b"<Code>SlowDown</Code>" in body) == (503, True)
        clients[0].close()
        wait_until(lambda: node.counter("feedrack_connections") == 7)
        assert clients[8].get("/full/none")[0] == 404
        for client in clients:
            client.close()


def test_what_all_processes_count_adds_up_also_of_those_that_have_ended(
    make_node: MakeNode,
) -> None:
    node = make_node(public(count={"freshness_seconds": 600}))
    family = Family(node)
    client = node.client()
    client.create_bucket(Bucket="count")
    client.put_object(Bucket="count", Key="k", Body=b"c" * 70_000)
    client.close()
    family.hold("/count/k")

    def answered(code: str) -> float:
        return node.counter("feedrack_requests_total", operation="GetObject", code=code)

    # A client has its answer before it is counted.
    before = -1.0
    while before != (now := answered("200")):
        before = now
        time.sleep(0.2)
    read_bytes = node.counter("feedrack_read_bytes_total", tier="disk")
    for round_number in (1, 2):
        with family.clients() as clients:
            wait_until(lambda: node.counter("feedrack_connections") == len(clients))
            for each in clients:
                for _ in range(50):
                    assert each.get("/count/k")[0] == 200
                for _ in range(10):
                    assert each.get("/count/none")[0] == 404
        wait_until(lambda asked=round_number: answered("200") == before + asked * 100)  # type: ignore[misc]
        wait_until(lambda asked=round_number: answered("404") == asked * 20)  # type: ignore[misc]
        assert node.counter("feedrack_read_bytes_total", tier="disk") == (
            read_bytes + round_number * 100 * 70_000
        )
        seconds = node.counter("feedrack_request_seconds_count", operation="GetObject", tier="disk")
        assert seconds == before + round_number * 100
        wait_until(lambda: node.counter("feedrack_connections") == 0)
        [victim, _] = family.workers
        victim.kill()
        wait_until(lambda victim=victim: victim.pid not in {w.pid for w in family.workers})  # type: ignore[misc]
        wait_until(lambda: len(family.workers) == 2)
        wait_until(lambda: _ask(node, "/readyz", None)[1].get("ready"))
        assert answered("200") == before + round_number * 100
        assert answered("404") == round_number * 20
        keeper = family.keeper
        keeper.kill()
        wait_until(lambda keeper=keeper: not keeper.is_running())  # type: ignore[misc]
        wait_until(lambda: _ask(node, "/readyz", None)[1].get("ready"))
    status, members = _ask(node, "/v1/members")
    assert (status, members["members"][0]["state"]) == (200, "serving")


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_an_answer_goes_on_where_a_chunk_cannot_be_read_midway(
    make_node: MakeNode, fault: str
) -> None:
    node = make_node(public(long={"immutable": True}))
    client = node.client()
    client.create_bucket(Bucket="long")
    body = random.Random(8).randbytes(40 * CHUNK_BYTES)
    client.put_object(Bucket="long", Key="k", Body=body)
    Family(node).hold("/long/k")
    # Nobody has a file open now, and all know what is in them.
    assert node.stop() == 0
    node.start()
    with Family(node).clients() as [reader, other]:
        reader.ask("/long/k")
        assert reader.is_answered(60)
        # What fits the sockets is on its way; these chunks are not yet.
        later = [
            path
            for path in (node.folder / "cache/chunks").rglob("*")
            if path.is_file() and int(path.suffix[1:]) >= 24
        ]
        assert len(later) == 16
        for path in later:
            if fault == "gone":
                path.unlink()
            else:
                path.write_bytes(bytes(path.stat().st_size))
        assert reader.answer()[:2] == (200, body)
        assert other.get("/long/k")[:2] == (200, body)
    assert node.origin_gets() == 16
    if fault == "damaged":
        assert node.counter("feedrack_cache_corrupt_total") == 16
