"""`python -m benchmarks.drive`: a load of one's own against any S3 endpoint that speaks HTTP.

A mix of GET, STAT (HEAD) and PUT over objects of one size, so many at a time, as `warp mixed` does.
Signs ahead and checks what comes like the benchmarks: no request is sent twice, and a body in 64
is hashed. Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Exit status 1 where an answer
was wrong.
"""

import re
import sys

import boto3
import click
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from benchmarks import load
from benchmarks.jobs import Job, Method, Outcome
from benchmarks.measure import changed
from benchmarks.report import number

_MIB = 1024**2
_METHODS: dict[str, Method] = {"get": "GET", "stat": "HEAD", "put": "PUT"}
_UNITS = {"": 1, "KiB": 1024, "MiB": _MIB, "GiB": 1024 * _MIB}
# A key is signed for another second each time it comes round, and there are twenty minutes of them.
_ROUNDS = 1000


def parse_mix(text: str) -> dict[Method, int]:
    """`get=45,stat=30,put=25` as shares by method. ValueError where it is not that."""
    mix: dict[Method, int] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if name not in _METHODS or not share.isascii() or not share.isdigit():
            raise ValueError(f"{part!r} is not get, stat or put = a number")
        mix[_METHODS[name]] = int(share)
    if not any(mix.values()):
        raise ValueError("a mix of nothing")
    return mix


def parse_size(text: str) -> int:
    """`4KiB`, `64 MiB` or a number of bytes. ValueError where it is not that."""
    found = re.fullmatch(r"(\d{1,12}) ?(|[KMG]iB)", text, re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 4KiB")
    return int(found[1]) * _UNITS[found[2]]


def table(outcome: Outcome) -> list[str]:
    """A line for each method, and one for all of them."""
    lines = ["| method | requests | requests/s | p50 ms | p99 ms | p99.9 ms |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    rows = [(method, part.requests, part.latency) for method, part in outcome.by_method.items()]
    for method, requests, times in [*rows, ("all", outcome.requests, outcome.latency)]:
        cells = (
            method,
            f"{requests:,}",
            number(requests / outcome.seconds),
            number(times.p50_ms),
            number(times.p99_ms),
            number(times.p999_ms),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"{number(outcome.body_bytes / outcome.seconds / _MIB)} MiB/s of bodies in "
        f"{outcome.seconds:.1f} s, {outcome.hashed} of them hashed, {outcome.failures} failures, "
        f"load generator busy {100 * outcome.client_busy:.0f} %",
    ]
    if outcome.tiers:
        tiers = ", ".join(f"{tier} {count:,}" for tier, count in outcome.tiers.items())
        lines.append(f"answered from: {tiers}")
    if outcome.first_failure is not None:
        lines.append(f"the first failure: {outcome.first_failure}")
    return lines


def _create_bucket(job: Job) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{job.host}:{job.port}",
        aws_access_key_id=job.access_key,
        aws_secret_access_key=job.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    try:
        client.create_bucket(Bucket=job.bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
            raise


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("endpoint", metavar="HOST:PORT")
@click.option("--bucket", default="drive", show_default=True)
@click.option("--prefix", default="drive", show_default=True)
@click.option("--mix", default="get=45,stat=30,put=25", show_default=True)
@click.option("--size", default="1MiB", show_default=True, help="Of an object.")
@click.option("--piece", help="GET ranges of this size instead of whole objects.")
@click.option("--objects", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--concurrent", type=click.IntRange(1), default=32, show_default=True)
@click.option("--seconds", type=float, default=10.0, show_default=True)
@click.option("--rate", type=float, help="Requests per second.  [default: as fast as it goes]")
@click.option("--most", type=int, default=200_000, show_default=True, help="Of the requests.")
@click.option("--prepare/--no-prepare", default=True, show_default=True, help="Upload them first.")
@click.option("--access-key", envvar="AWS_ACCESS_KEY_ID", required=True, hidden=True)
@click.option("--secret-key", envvar="AWS_SECRET_ACCESS_KEY", required=True, hidden=True)
def main(
    endpoint: str,
    bucket: str,
    prefix: str,
    mix: str,
    size: str,
    piece: str | None,
    objects: int,
    concurrent: int,
    seconds: float,
    rate: float | None,
    most: int,
    prepare: bool,
    access_key: str,
    secret_key: str,
) -> None:
    """Drive an S3 endpoint with a mix of requests."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise click.UsageError(f"{endpoint!r} is not HOST:PORT")
    try:
        job = Job(
            mix=parse_mix(mix),
            host=host,
            port=int(port),
            bucket=bucket,
            prefix=prefix,
            count=objects,
            size_bytes=parse_size(size),
            requests=min(most, objects * _ROUNDS),
            connections=concurrent,
            access_key=access_key,
            secret_key=secret_key,
            piece_bytes=None if piece is None else parse_size(piece),
            seconds=seconds,
            rate=rate,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    failures = 0
    try:
        if prepare:
            _create_bucket(job)
            given = changed(job, mix={"PUT": 1}, requests=objects, seconds=None, rate=None)
            failures = load.run(given).failures
        outcome = load.run(job)
    except (OSError, BotoCoreError) as error:
        raise click.ClickException(f"{endpoint}: {error}") from error
    print("\n".join(table(outcome)))
    sys.exit(1 if failures or outcome.failures else 0)


if __name__ == "__main__":
    main()
