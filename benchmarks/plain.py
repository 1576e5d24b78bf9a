"""aiobotocore's plain read of objects: the yardstick for what taking bytes in from S3 must cost.

A process of its own, which reads each object once, one after the other, throws the bytes away, and
tells what that cost it. The program's start, the client's, and one read before the clock starts are
not counted.
"""

import asyncio
import os
import subprocess
import sys
import time

import msgspec
from aiobotocore.session import get_session
from msgspec import Struct
from types_aiobotocore_s3.client import S3Client

from benchmarks import objects
from benchmarks.jobs import Job, Outcome, Part, latency
from benchmarks.measure import Sample
from benchmarks.server import server_cores

# What the table calls them: all of the body at once, as most programs do, and block by block.
WHOLE, STREAMED = "aiobotocore read()", "aiobotocore in blocks"
WAYS = (WHOLE, STREAMED)
# As much as aiohttp's own buffer holds: larger reads wait, and join what came.
_BLOCK_BYTES = 128 * 1024


class _Asked(Struct, frozen=True):
    job: Job
    way: str


class _Told(Struct, frozen=True):
    """What the process says at its end."""

    outcome: Outcome
    cpu_seconds: float


class _Read(Struct, frozen=True):
    whole_ns: int
    first_byte_ns: int
    body_bytes: int


async def _get(client: S3Client, asked: _Asked, number: int) -> _Read:
    job = asked.job
    started_ns = time.perf_counter_ns()
    answer = await client.get_object(Bucket=job.bucket, Key=objects.key(job.prefix, number))
    async with answer["Body"] as stream:
        if asked.way == WHOLE:
            body_bytes, first_byte_ns = len(await stream.read()), 0
        else:
            body_bytes = len(await stream.read(_BLOCK_BYTES))
            first_byte_ns = time.perf_counter_ns() - started_ns
            while block := await stream.read(_BLOCK_BYTES):
                body_bytes += len(block)
    return _Read(time.perf_counter_ns() - started_ns, first_byte_ns, body_bytes)


async def _read(asked: _Asked) -> _Told:
    job = asked.job
    async with get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"http://{job.host}:{job.port}",
        aws_access_key_id=job.access_key,
        aws_secret_access_key=job.secret_key,
    ) as client:
        await _get(client, asked, 0)
        cpu, started = time.process_time(), time.monotonic()
        reads = [await _get(client, asked, number) for number in range(job.requests)]
        cpu, seconds = time.process_time() - cpu, time.monotonic() - started
    body_bytes = sum(read.body_bytes for read in reads)
    whole = latency([read.whole_ns for read in reads])
    return _Told(
        Outcome(
            requests=job.requests,
            failures=int(body_bytes != job.requests * job.size_bytes),
            first_failure=None,
            body_bytes=body_bytes,
            seconds=seconds,
            latency=whole,
            first_byte=latency([read.first_byte_ns for read in reads if read.first_byte_ns]),
            by_method={"GET": Part(job.requests, whole)},
            hashed=0,
            client_busy=cpu / seconds,
        ),
        cpu,
    )


def measure_plain_read(job: Job, way: str) -> Sample:
    """Reads the job's first `requests` objects on the servers' core. CPU is the reader's own."""
    cores = server_cores()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plain"],
        input=msgspec.json.encode(_Asked(job, way)),
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    told = msgspec.json.decode(done.stdout, type=_Told)
    return Sample(outcome=told.outcome, cpu_seconds=told.cpu_seconds, peak_resident_bytes=0)


if __name__ == "__main__":
    told = asyncio.run(_read(msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)))
    sys.stdout.buffer.write(msgspec.json.encode(told))
