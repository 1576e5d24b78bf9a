"""Requests signed ahead are what boto3 would send, and none is sent twice."""

import random
import socket
import threading
import time
from collections import Counter

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from benchmarks.jobs import Job, Method
from benchmarks.measure import changed
from benchmarks.signed import Request, Seconds, prepare, signed_head

JOB = Job(
    mix={"GET": 1},
    host="127.0.0.1",
    port=9000,
    bucket="read",
    prefix="some",
    count=20,
    size_bytes=5000,
    requests=70,
    connections=4,
    access_key="who",
    secret_key="not-a-secret",
)


def signed(job: Job) -> list[Request]:
    return prepare(job, Seconds(), random.Random(1))


def parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    lines = head.decode().split("\r\n")
    assert lines[-2:] == ["", ""]
    method, path, _ = lines[0].split(" ")
    return (
        method,
        path,
        {name.lower(): value for name, value in (x.split(": ") for x in lines[1:-2])},
    )


def signature_by_botocore(method: str, path: str, headers: dict[str, str]) -> str:
    names = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    request = AWSRequest(
        method=method,
        url=f"http://{headers['host']}{path}",
        headers={name: headers[name] for name in names},
    )
    request.context["timestamp"] = headers["x-amz-date"]
    signer = S3SigV4Auth(Credentials(JOB.access_key, JOB.secret_key), "s3", "us-east-1")
    to_sign = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(to_sign, request))


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize("piece_bytes", [None, 100])
def test_signatures_are_botocores(method: Method, piece_bytes: int | None) -> None:
    job = changed(JOB, mix={method: 1}, piece_bytes=piece_bytes)
    for request in signed(job):
        asked, path, headers = parsed(request.head)
        assert asked == method
        expected = signature_by_botocore(method, path, headers)
        assert headers["authorization"].rpartition("Signature=")[2] == expected


def test_heads_are_boto3s_header_for_header() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        seen: list[bytes] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                while b"\r\n\r\n" not in b"".join(seen):
                    seen.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=JOB.access_key,
            aws_secret_access_key=JOB.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )
        client.get_object(Bucket="read", Key="some/000003", Range="bytes=7-106")
        client.close()
        thread.join()
    theirs = parsed(b"".join(seen))
    ours = parsed(signed_head(changed(JOB, port=port, piece_bytes=100), "GET", 3, 7))
    assert ours[:2] == theirs[:2]
    assert ours[2].keys() == theirs[2].keys()
    differ = {name for name, value in ours[2].items() if theirs[2][name] != value}
    assert differ <= {"user-agent", "authorization", "x-amz-date", "amz-sdk-invocation-id"}
    assert abs(len(ours[2]["user-agent"]) - len(theirs[2]["user-agent"])) < 60
    names = [
        each[2]["authorization"].split("SignedHeaders=")[1].split(",")[0] for each in (ours, theirs)
    ]
    assert names[0] == names[1]


def test_no_two_requests_of_a_run_are_the_same_nor_signed_alike() -> None:
    seconds = Seconds()
    heads = [request.head for _ in range(3) for request in prepare(JOB, seconds, random.Random(7))]
    assert len(set(heads)) == len(heads) == 210
    asked = [parsed(head) for head in heads]
    bare = [(path, headers["x-amz-date"]) for _, path, headers in asked]
    assert len(set(bare)) == 210


def test_keys_come_round_once_before_any_comes_again() -> None:
    numbers = [request.number for request in signed(JOB)]
    rounds = [numbers[start : start + 20] for start in range(0, 60, 20)]
    assert all(sorted(each) == list(range(20)) for each in rounds)
    assert rounds[0] != list(range(20))


def test_one_round_is_signed_for_one_second_as_a_busy_client_would() -> None:
    dates = [parsed(request.head)[2]["x-amz-date"] for request in signed(JOB)]
    assert [*Counter(dates).values()] == [20, 20, 20, 10]
    assert dates == sorted(dates)


def test_no_signature_is_older_than_a_server_allows() -> None:
    seconds = Seconds()
    found = [seconds.take(JOB) for _ in range(100)]
    assert found == sorted(set(found))
    assert time.time() - 700 < found[0] <= found[-1] < time.time()


def test_a_long_run_does_not_fall_behind_the_clock() -> None:
    now = [1_800_000_000.0]
    seconds = Seconds(clock=lambda: now[0])
    found = []
    for _ in range(30):
        found.append(seconds.take(JOB))
        now[0] += 60
        assert now[0] - found[-1] <= 700
    assert found == sorted(set(found))


def test_more_rounds_than_seconds_are_refused() -> None:
    seconds = Seconds()
    with pytest.raises(RuntimeError, match="no time is left to sign some"):
        prepare(changed(JOB, count=1, requests=2000), seconds, random.Random(1))


def test_another_server_has_seconds_of_its_own() -> None:
    seconds = Seconds()
    first = seconds.take(JOB)
    assert seconds.take(changed(JOB, port=9001)) <= first + 1
    assert seconds.take(JOB) == first + 1


def test_ranges_lie_within_the_object_and_differ() -> None:
    job = changed(JOB, count=1, piece_bytes=100, requests=500)
    asked = [parsed(request.head)[2]["range"] for request in signed(job)]
    bounds = [tuple(map(int, each.removeprefix("bytes=").split("-"))) for each in asked]
    assert all(last < 5000 and last - first == 99 for first, last in bounds)
    assert len(set(asked)) > 400


def test_a_mix_has_its_shares() -> None:
    job = changed(JOB, mix={"GET": 3, "PUT": 1}, requests=4000)
    counts = Counter(request.method for request in signed(job))
    assert 2800 < counts["GET"] < 3200
    assert counts["GET"] + counts["PUT"] == 4000
