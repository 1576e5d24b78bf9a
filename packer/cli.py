"""`packer`: many small objects become a few shards, and back.

Exit status: 0 done, 1 failed, 2 wrong use.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
import lmdb
import msgspec

from packer import heaps
from packer.catalog import NoPack, PackDamaged, fetch_index, load_all, load_pack, read_overrides
from packer.drop import WouldLose, drop
from packer.format import (
    IndexDamaged,
    ManifestError,
    OverrideError,
    Place,
    ShardError,
    etag_text,
)
from packer.format.manifest import KEEP_SECONDS, SETTLE_SECONDS
from packer.lock import Locked, LockLost
from packer.originals import Refused, delete_originals
from packer.pack import Options, PackRefused, Report, pack, plan_only
from packer.plan import valid_order
from packer.progress import Shown
from packer.runs import RunDamaged
from packer.stores.choice import Dataset, open_store, parse_dataset
from packer.stores.protocol import Store, StoreError
from packer.targets import BucketTarget, DirectoryTarget, Target, TarTarget
from packer.unpack import unpack
from packer.verify import verify_pack

_FAILURES = (
    StoreError, OSError, lmdb.Error, msgspec.MsgspecError, ManifestError, OverrideError,
    IndexDamaged, ShardError, RunDamaged, PackDamaged, NoPack, Locked, LockLost, PackRefused,
    Refused, WouldLose,
)  # fmt: skip
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)?\Z")
_UNITS = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_LARGEST_BYTES = 64 * 1024**2


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.match(str(value))
        if found is None or not int(found[1]):
            self.fail(f"{value}: not a size like 256MiB", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


class _Dataset(click.ParamType[Dataset]):
    name = "s3://bucket/prefix"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Dataset:
        if isinstance(value, Dataset):
            return value
        try:
            return parse_dataset(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_DATASET = _Dataset()
_Command = Callable[..., None]


def _endpoint(command: _Command) -> _Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout."),
        click.option(
            "--spool",
            type=click.Path(path_type=Path, file_okay=False),
            help="Where files lie on their way (default: the user's cache folder).",
        ),
        click.option("--profile", help="The profile of AWS's configuration files."),
        click.option(
            "--endpoint-url", help="The S3 endpoint; file:///srv/data for a directory of buckets."
        ),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="feedrack")
def main() -> None:
    """Pack millions of small objects into a few hundred shards; the old keys still answer."""
    heaps.tune()


@main.command("pack")
@click.argument("dataset", type=_DATASET)
@click.option("--dry-run", is_flag=True, help="Print the plan and what it will save.")
@click.option("--shard-size", type=_Size(), default="256MiB", show_default=True)
@click.option("--largest", type=_Size(), default="1MiB", show_default=True,
              help="Larger objects stay as they are.")  # fmt: skip
@click.option("--order", default="lexical", show_default=True,
              help="lexical, shuffled:SEED, or file:PATH with a key a line.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 512), default=16, show_default=True,
              help="Requests at once.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with an interrupted pack.")
@click.option("--delete-originals", "deleting", is_flag=True,
              help="Once the whole pack is read back and verified.")  # fmt: skip
@click.option("--from", "source", type=click.Choice(["webdataset", "tfrecord"]),
              help="Make objects of the contents of these files.")  # fmt: skip
@click.option("--settle", type=click.FloatRange(0), default=SETTLE_SECONDS, show_default=True,
              help="Seconds for gateways to notice a first pack; 0 if none writes.")  # fmt: skip
@click.option("--keep", type=click.FloatRange(0), default=KEEP_SECONDS, show_default=True,
              help="Seconds that a replaced pack stays for those who still read it.")  # fmt: skip
@_endpoint
def pack_command(
    dataset: Dataset, dry_run: bool, shard_size: int, largest: int, order: str, jobs: int,
    resume: bool, deleting: bool, source: str | None, settle: float, keep: float,
    endpoint_url: str | None, profile: str | None, spool: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Make a pack of a prefix, or bring one up to date."""
    if not valid_order(order):
        raise click.BadParameter("lexical, shuffled:SEED or file:PATH", param_hint="--order")
    if order.startswith("file:") and not Path(order[5:]).is_file():
        raise click.BadParameter(f"no file {order[5:]}", param_hint="--order")
    if largest > _LARGEST_BYTES:
        raise click.BadParameter(
            "at most 64MiB: packs are for small objects", param_hint="--largest"
        )
    if deleting and (source is not None or dry_run):
        raise click.UsageError("--delete-originals goes with neither --from nor --dry-run")
    with _working(dataset, endpoint_url, profile) as store, Shown() as shown:
        folder = _folder(spool, dataset)
        options = Options(
            dataset=dataset, folder=folder, order=order, shard_bytes=shard_size,
            largest_bytes=largest, jobs=jobs, resume=resume, source=source,
            settle_seconds=settle, keep_seconds=keep,
        )  # fmt: skip
        if dry_run:
            with _scratch(spool) as scratch:
                report = plan_only(store, msgspec.structs.replace(options, folder=scratch), shown)
            deleted = None
        else:
            report = pack(store, options, shown)
            deleted = (
                delete_originals(store, Place(dataset.prefix), folder, shown) if deleting else None
            )
    if as_json:
        _print_json({"report": report, "deleted_originals": deleted})
    else:
        _tell(report, dry_run)
        if deleted is not None:
            click.echo(
                f"deleted {deleted.objects:,} originals ({_human(deleted.size_bytes)}); "
                f"{deleted.changed:,} have changed and stay, {deleted.failed:,} could not go"
            )
    if deleted is not None and deleted.failed:
        sys.exit(1)


@main.command("verify")
@click.argument("dataset", type=_DATASET)
@_endpoint
def verify_command(
    dataset: Dataset,
    endpoint_url: str | None,
    profile: str | None,
    spool: Path | None,
    as_json: bool,
) -> None:
    """Check every object of a pack against its index."""
    with (
        _working(dataset, endpoint_url, profile) as store,
        _scratch(spool) as folder,
        Shown() as shown,
    ):
        result = verify_pack(store, Place(dataset.prefix), folder, shown)
    if as_json:
        _print_json(result)
    else:
        for line in result.damaged:
            click.echo(f"damaged: {line}")
        click.echo(
            f"pack {result.pack}: {result.objects:,} objects ({_human(result.size_bytes)}) in "
            f"{result.shards:,} shards are whole, {result.damaged_count:,} damaged"
        )
    if result.damaged_count:
        sys.exit(1)


@main.command("ls")
@click.argument("dataset", type=_DATASET)
@click.option("--packs", "only_packs", is_flag=True, help="List packs even where DATASET is one.")
@_endpoint
def ls_command(
    dataset: Dataset, only_packs: bool, endpoint_url: str | None, profile: str | None,
    spool: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """List the packs of a bucket, or the keys of the pack of a prefix."""
    with _working(dataset, endpoint_url, profile) as store:
        manifests = [found for found in load_all(store) if found.state != "dropped"]
        if only_packs or not any(found.prefix == dataset.prefix for found in manifests):
            if dataset.prefix and not only_packs:
                raise NoPack(f"no pack of {dataset}")
            for found in manifests:
                if as_json:
                    _print_json(found)
                else:
                    click.echo(
                        f"s3://{found.bucket}/{found.prefix}  {found.state}  "
                        f"{found.packed_objects:,} objects  {_human(found.packed_bytes)}  "
                        f"{len(found.shards)} shards  {found.order}  {found.created}"
                    )
            return
        with _scratch(spool) as folder:
            _list_keys(store, dataset, folder, as_json)


def _list_keys(store: Store, dataset: Dataset, folder: Path, as_json: bool) -> None:
    place = Place(dataset.prefix)
    manifest = load_pack(store, place)
    overrides = read_overrides(store, place, manifest.overrides_through)
    with fetch_index(store, place, manifest, folder) as index:
        for raw, record in index.walk():
            key = raw.decode()
            stand = overrides.get(key)
            state: str = stand.override.op if stand is not None else "packed"
            if state == "packed" and record.shard is None:
                state = "plain"
            if as_json:
                _print_json(
                    {
                        "key": key,
                        "size_bytes": record.size_bytes,
                        "etag": etag_text(record.etag),
                        "modified_ms": record.modified_ms,
                        "state": state,
                        "shard": None
                        if record.shard is None
                        else index.shards[record.shard].sha256,
                        "offset": record.offset,
                    }
                )
            else:
                click.echo(f"{record.size_bytes:>12,}  {state:<7} {key}")


@main.command("unpack")
@click.argument("dataset", type=_DATASET)
@click.option("--to", help="A directory, or s3://bucket/prefix; default: where the objects were.")
@click.option("--to-endpoint-url", help="The endpoint of --to, where it is another.")
@click.option("--to-webdataset", is_flag=True, help="Write tars into the directory of --to.")
@click.option("--tar-size", type=_Size(), default="256MiB", show_default=True)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace objects that are in the bucket already; files always are.",
)
@click.option("--keep-times", is_flag=True, help="Say times in x-amz-meta-mtime (buckets only).")
@click.option("--jobs", type=click.IntRange(1, 512), default=16, show_default=True)
@_endpoint
def unpack_command(
    dataset: Dataset, to: str | None, to_endpoint_url: str | None, to_webdataset: bool,
    tar_size: int, replace: bool, keep_times: bool, jobs: int, endpoint_url: str | None,
    profile: str | None, spool: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Restore the objects of a packed prefix, bit for bit."""
    to_bucket = to is None or to.startswith("s3://")
    if to_webdataset and to_bucket:
        raise click.UsageError("--to-webdataset wants a directory in --to")
    target_dataset = _DATASET.convert(to, None, None) if to is not None and to_bucket else dataset
    in_place = to_bucket and target_dataset == dataset and to_endpoint_url is None
    if in_place and replace:
        raise click.UsageError("what is in the prefix itself is never replaced")
    with (
        _working(dataset, endpoint_url, profile) as store,
        _scratch(spool) as folder,
        Shown() as shown,
        ExitStack() as stack,
    ):
        target: Target
        if to_webdataset:
            target = TarTarget(Path(to or ""), dataset.prefix, tar_size)
        elif not to_bucket:
            target = DirectoryTarget(Path(to or ""), dataset.prefix)
        else:
            other = stack.enter_context(
                closing(open_store(target_dataset.bucket, to_endpoint_url or endpoint_url, profile))
            )
            target = BucketTarget(
                other, dataset.prefix, target_dataset.prefix, replace=replace, keep_times=keep_times
            )
        place = Place(dataset.prefix)
        result = unpack(store, place, folder, target, shown, jobs=jobs, in_place=in_place)
    if as_json:
        _print_json(result)
    else:
        for line in result.failed:
            click.echo(f"failed: {line}", err=True)
        click.echo(
            f"unpacked {result.objects:,} objects ({_human(result.size_bytes)}); "
            f"{result.kept:,} were there already, {result.failed_count:,} failed"
        )
    if result.failed_count:
        sys.exit(1)


@main.command("drop")
@click.argument("dataset", type=_DATASET)
@click.option("--force", is_flag=True, help="Even if objects are in the pack alone: they are lost.")
@_endpoint
def drop_command(
    dataset: Dataset, force: bool, endpoint_url: str | None, profile: str | None,
    spool: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Remove a pack; refused while objects are in it alone."""
    with _working(dataset, endpoint_url, profile) as store, _scratch(spool) as folder:
        result = drop(store, Place(dataset.prefix), folder, force=force)
    if as_json:
        _print_json(result)
    else:
        click.echo(f"dropped the pack of {dataset}: {result.removed_keys:,} keys removed")


@contextmanager
def _working(dataset: Dataset, endpoint_url: str | None, profile: str | None) -> Iterator[Store]:
    """The dataset's store; every failure becomes a line and status 1."""
    try:
        with closing(open_store(dataset.bucket, endpoint_url, profile)) as store:
            yield store
    except BrokenPipeError:
        # Whoever read our lines has read enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except _FAILURES as error:
        _failed(error)
    except KeyboardInterrupt:
        click.echo("packer: interrupted (--resume goes on with a pack)", err=True)
        sys.exit(1)


def _failed(error: Exception) -> NoReturn:
    click.echo(f"packer: {error or type(error).__name__}", err=True)
    sys.exit(1)


def _spool(spool: Path | None) -> Path:
    base = spool
    if base is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        base = Path(cache) / "feedrack" / "packer"
    base.mkdir(parents=True, exist_ok=True)
    return base


def _folder(spool: Path | None, dataset: Dataset) -> Path:
    return _spool(spool) / f"{dataset.bucket}-{Place(dataset.prefix).name}"


@contextmanager
def _scratch(spool: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_spool(spool)) as folder:
        yield Path(folder)


def _print_json(value: object) -> None:
    click.echo(msgspec.json.encode(value))


def _tell(report: Report, dry_run: bool) -> None:
    plan = report.plan
    click.echo(
        f"{'would read' if dry_run else 'planned'} {plan.read_objects:,} objects "
        f"({_human(plan.read_bytes)}) into {plan.new_shards:,} shards; "
        f"moved {plan.moved_objects:,}, kept {plan.kept_objects:,} in {plan.kept_shards:,} shards, "
        f"plain {plan.plain_objects:,}, gone {plan.gone_objects:,}"
    )
    click.echo(
        f"GETs of the origin for one cold epoch: {report.requests_before:,} before, "
        f"{report.requests_after:,} after"
    )
    if dry_run:
        click.echo(
            f"--delete-originals: {plan.original_objects:,} objects "
            f"({_human(plan.original_bytes)}) fewer in the bucket"
        )
        return
    for item in report.left_out:
        click.echo(f"left out: {item.key}: {item.reason}")
    word = "made" if report.changed else "nothing to do: there is"
    click.echo(
        f"{word} pack {report.pack}, generation {report.generation}: "
        f"{report.packed_objects:,} objects ({_human(report.packed_bytes)}) in "
        f"{report.shard_files:,} shards ({_human(report.shard_file_bytes)}) "
        f"and an index of {_human(report.index_bytes)}"
    )


def _human(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
