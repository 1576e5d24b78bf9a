"""Uploads a real tree through a real node, reads it cold, warm and through s3fs, checks every byte.

The files are ones that every machine with Python has: thousands of small ones, its standard library
and then the packages installed beside it, and the largest shared library among those.
"""

import argparse
import hashlib
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiobotocore
import boto3
import s3fs
from botocore.config import Config
from rich.box import SIMPLE
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.node import ACCESS_KEY, DemoNode

_BUCKET = "demo"
_THREADS = 16
_MOST_FILES = 2500

console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    arguments = parser.parse_args()
    # A node outlives no demo, however that ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    node = DemoNode(Path.cwd() / ".demo")
    try:
        node.start()
        wrong = _run(node)
        console.print(f"\nDone in {time.monotonic() - started:.0f} s.", end=" ")
        if wrong:
            console.print(f"[red]{wrong} objects came back wrong; see {node.log}[/red]")
            return 1
        console.print("Every object came back bit for bit.")
        _say_how_to_go_on(node, keep=arguments.keep)
        if arguments.keep:
            node.wait()
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        node.stop()
    return 0


def _run(node: DemoNode) -> int:
    small = _sources()
    large = _largest_library()
    files = small | {f"large/{large.name}": large}
    expected = {key: _sha256(path.read_bytes()) for key, path in files.items()}
    total = sum(path.stat().st_size for path in files.values())
    console.print(
        f"feedrack demo: {len(small)} source files of Python and its packages, and one of "
        f"{decimal(large.stat().st_size)}; {decimal(total)} in all.\n"
        f"One node at {node.endpoint_url}, a folder as its origin, an empty cache.\n"
    )
    table = Table(box=SIMPLE, padding=(0, 1))
    for heading in (
        "step",
        "objects",
        "seconds",
        "objects/s",
        "tier",
        "origin GETs",
    ):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "step" else "right")
    wrong = 0
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:

        def step(name: str, work: Callable[[Callable[[], None]], int]) -> int:
            task = progress.add_task(name, total=len(files))
            gets = node.counter("feedrack_origin_requests_total", operation="GetObject")
            tiers = {tier: _served(node, tier) for tier in ("disk", "origin")}
            begun = time.monotonic()
            failures = work(lambda: progress.advance(task))
            seconds = time.monotonic() - begun
            gets = node.counter("feedrack_origin_requests_total", operation="GetObject") - gets
            served = {tier: _served(node, tier) - count for tier, count in tiers.items()}
            table.add_row(
                name,
                str(len(files)),
                f"{seconds:.1f}",
                f"{len(files) / seconds:.0f}",
                ", ".join(f"{tier} {count}" for tier, count in served.items() if count) or "-",
                str(gets),
            )
            return failures

        client = _client(node)
        client.create_bucket(Bucket=_BUCKET)
        wrong += step("upload, boto3", lambda tick: _upload(client, files, tick))
        node.stop()
        node.wipe_cache()
        node.start()
        client = _client(node)
        wrong += step("read cold, boto3", lambda tick: _read(client, expected, tick))
        wrong += step("read warm, boto3", lambda tick: _read(client, expected, tick))
        wrong += step("read warm, s3fs", lambda tick: _read_s3fs(node, expected, tick))
    console.print(table)
    return wrong


def _upload(client: Any, files: dict[str, Path], tick: Callable[[], None]) -> int:
    def put(item: tuple[str, Path]) -> None:
        key, path = item
        client.upload_file(str(path), _BUCKET, key)
        tick()

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(put, files.items()))
    return 0


def _read(client: Any, expected: dict[str, str], tick: Callable[[], None]) -> int:
    def get(item: tuple[str, str]) -> bool:
        key, digest = item
        body = client.get_object(Bucket=_BUCKET, Key=key)["Body"].read()
        tick()
        return _sha256(body) != digest

    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(get, expected.items()))


def _read_s3fs(node: DemoNode, expected: dict[str, str], tick: Callable[[], None]) -> int:
    filesystem = s3fs.S3FileSystem(
        key=ACCESS_KEY,
        secret=node.secret_key,
        endpoint_url=node.endpoint_url,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    wrong = 0
    for keys in _batches(list(expected), 256):
        found = filesystem.cat([f"{_BUCKET}/{key}" for key in keys])
        for key in keys:
            wrong += _sha256(found[f"{_BUCKET}/{key}"]) != expected[key]
            tick()
    return wrong


def _served(node: DemoNode, tier: str) -> int:
    return node.counter("feedrack_request_seconds_count", operation="GetObject", tier=tier)


def _client(node: DemoNode) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=node.endpoint_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=node.secret_key,
        region_name="us-east-1",
        config=Config(max_pool_connections=_THREADS),
    )


def _sources() -> dict[str, Path]:
    """Python's own sources and, where its library is a small one, those of installed packages."""
    roots = [Path(sysconfig.get_path("stdlib")), _packages()]
    found: dict[str, Path] = {}
    for name, root in zip(("stdlib", "packages"), roots, strict=True):
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root)
            if "site-packages" not in inside.parts and path.is_file():
                found[f"{name}/{inside.as_posix()}"] = path
    return dict(list(found.items())[:_MOST_FILES])


def _packages() -> Path:
    return Path(aiobotocore.__file__).parent.parent


def _largest_library() -> Path:
    """The largest shared library among the installed packages, or else the interpreter."""
    beside = _packages()
    candidates = [*beside.rglob("*.so"), *beside.rglob("*.so.*"), Path(sys.executable).resolve()]
    return max(candidates, key=lambda path: path.stat().st_size)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _batches(keys: list[str], size: int) -> Iterable[list[str]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def _say_how_to_go_on(node: DemoNode, *, keep: bool) -> None:
    if keep:
        intro = "The node stays up until Ctrl-C. In another terminal:"
    else:
        intro = "`make demo ARGS=--keep` leaves the node up, to be tried by hand like this:"
    console.print(f"{intro}\n", highlight=False)
    console.print(
        f"  export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={node.secret_key}\n"
        f"  export AWS_ENDPOINT_URL={node.endpoint_url} AWS_DEFAULT_REGION=us-east-1\n"
        f"  aws s3 ls --recursive s3://{_BUCKET}/stdlib/ | head\n\n"
        "or in Python:\n\n"
        f'  boto3.client("s3", endpoint_url="{node.endpoint_url}")\n',
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
