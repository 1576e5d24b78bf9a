"""`python -m benchmarks.pieces`: what the parts of the pipeline cost that every request passes.

CPU microseconds a call, medians of rounds in which every piece has its turn. Heads are made anew
for each call, because what a head remembers of itself is part of the cost.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import click
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import Struct

from benchmarks import report
from gateway.auth.identity import UNSIGNED, Identity
from gateway.auth.policy import authorise
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.auth.tenants import Tenant
from gateway.config import LogConfig, Rule, Secret
from gateway.telemetry.lines import LineWriter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestRecord, RequestReporter

_REGION = "us-east-1"
_HOST = "127.0.0.1:9000"
_KEY = "imagenet/train/n01440764/n01440764_10026.JPEG"
_SECRET = "benchmark-secret"
_BY_BUCKET = (Rule(allow=("*",), buckets=("train", "test-*")), Rule(deny=("Delete*",)))
_BY_KEY = (Rule(allow=("*",), buckets=("train/imagenet/*",)), Rule(deny=("Delete*",)))
# What boto3 sends with a GET beside what it signs.
_UNSIGNED_HEADERS = (
    ("accept-encoding", "identity"),
    ("user-agent", "Boto3/1.40.0 md/Botocore#1.40.0 ua/2.1 os/linux lang/python#3.11"),
    ("amz-sdk-invocation-id", "0b6c7a35-68a3-4f0e-a4c1-2a0f2c3e1d77"),
    ("amz-sdk-request", "attempt=1"),
)

Run = Callable[[int], None]


class Cost(Struct, frozen=True, kw_only=True):
    """What one call of a piece takes."""

    piece: str
    cpu_microseconds: float
    rounds: list[float]


def pieces(lines: LineWriter) -> dict[str, Run]:
    """Every piece by its name: a call that does it so many times."""
    tenant = Tenant("demo", "demo-key", Secret(_SECRET), _BY_BUCKET)
    by_key = Tenant("demo", "other-key", Secret(_SECRET), _BY_KEY)
    authenticator = Authenticator([tenant], region=_REGION, clock_skew_seconds=900)
    return {
        "authenticate, header": _authenticating(authenticator, _head(presigned=False)),
        "authenticate, presigned": _authenticating(authenticator, _head(presigned=True)),
        "authenticate, anonymous": _authenticating(
            authenticator,
            RequestHead("GET", f"/train/{_KEY}", "", (("host", _HOST), *_UNSIGNED_HEADERS)),
        ),
        "authorise, rules of buckets": _authorising(Identity(tenant, UNSIGNED)),
        "authorise, rules of keys": _authorising(Identity(by_key, UNSIGNED)),
        "tell": _telling(RequestReporter(Metrics(), LogConfig(), lines)),
    }


def measure(found: dict[str, Run], *, rounds: int, calls: int) -> list[Cost]:
    """The cost of every piece: `rounds` turns of `calls` calls each, the first left out."""
    taken: dict[str, list[float]] = {piece: [] for piece in found}
    for number in range(rounds + 1):
        for piece, run in found.items():
            gc.collect()
            began = time.process_time_ns()
            run(calls)
            if number:
                taken[piece].append((time.process_time_ns() - began) / calls / 1000)
    return [
        Cost(piece=piece, cpu_microseconds=statistics.median(costs), rounds=costs)
        for piece, costs in taken.items()
    ]


def _head(*, presigned: bool) -> RequestHead:
    request = AWSRequest("GET", f"http://{_HOST}/train/{_KEY}")
    credentials = Credentials("demo-key", _SECRET)
    if presigned:
        S3SigV4QueryAuth(credentials, "s3", _REGION, expires=3600).add_auth(request)
    else:
        S3SigV4Auth(credentials, "s3", _REGION).add_auth(request)
    url = urlsplit(str(request.url))
    signed = ((name.lower(), value) for name, value in request.headers.items())
    return RequestHead("GET", url.path, url.query, (("host", _HOST), *_UNSIGNED_HEADERS, *signed))


def _authenticating(authenticator: Authenticator, head: RequestHead) -> Run:
    method, path, query, headers, fields = (
        head.method,
        head.path,
        head.query,
        head.headers,
        head.fields,
    )

    def run(calls: int) -> None:
        authenticate = authenticator.authenticate
        for _ in range(calls):
            authenticate(RequestHead.plain(method, path, query, headers, fields))

    return run


def _authorising(identity: Identity) -> Run:
    def run(calls: int) -> None:
        for _ in range(calls):
            authorise(identity, "GetObject", "train", _KEY, public_read=False)

    return run


def _telling(reporter: RequestReporter) -> Run:
    def run(calls: int) -> None:
        tell = reporter.tell
        for _ in range(calls):
            tell(
                RequestRecord(
                    operation="GetObject",
                    bucket="train",
                    key=_KEY,
                    status=200,
                    tenant="demo",
                    bytes_out=4096,
                    tier="disk",
                    seconds=0.000123456,
                    request_id="0123456789ABCDEF",
                    remote="127.0.0.1",
                    served={"disk": 4096},
                )
            )

    return run


def table(costs: list[Cost]) -> list[str]:
    """The costs as Markdown."""
    return ["| piece | CPU µs a call |", "| --- | ---: |"] + [
        f"| {cost.piece} | {cost.cpu_microseconds:.2f} |" for cost in costs
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=9, show_default=True, help="Turns of every piece.")
@click.option("--calls", default=20_000, show_default=True, help="Calls in a turn.")
@click.option("--write", is_flag=True, help="Write pieces.md and pieces.json too.")
def main(rounds: int, calls: int, write: bool) -> None:
    """Measure the pieces of the pipeline."""
    where = report.machine()
    with tempfile.TemporaryFile() as file:
        costs = asyncio.run(_within_a_loop(LineWriter(file.fileno()), rounds, calls))
    command = "python -m benchmarks.pieces"
    notes = (f"medians of {rounds} rounds of {calls:,} calls, user and system time",)
    lines = report.preamble(
        "Pieces of the pipeline", where, ("a GET as boto3 sends it",), notes, command
    )
    lines += table(costs)
    print("\n".join(lines))
    if write:
        report.write("pieces", lines, {"command": command, "machine": where, "rows": costs})


async def _within_a_loop(lines: LineWriter, rounds: int, calls: int) -> list[Cost]:
    # As in the node, where lines of a moment share one write.
    return measure(pieces(lines), rounds=rounds, calls=calls)


if __name__ == "__main__":
    main()
