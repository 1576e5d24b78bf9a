"""`packer pack`: from a prefix to a pack. What a crash leaves: docs/pack-format.md."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from packer.building import Sealed, build
from packer.catalog import (
    fetch_index,
    load_all,
    load_current,
    overlapping,
    publish,
    read_overrides,
)
from packer.format import Manifest, Overrides, Place, Record
from packer.format.manifest import KEEP_SECONDS, SETTLE_SECONDS
from packer.inputs import SUFFIXES, made_objects
from packer.lock import PackLock
from packer.plan import Scope, Summary, Task
from packer.planning import Before, Plan, make_plan
from packer.progress import Watcher
from packer.publishing import clean, moment, seconds_of, tool, write_index
from packer.reading import Outcome, read_in_order
from packer.runs import Keyed, placed, read_head
from packer.stores.choice import Dataset
from packer.stores.protocol import Store, StoreError
from packer.unfinished import Start, Unfinished, find_start, new_id

_REPORTED = 1000


class PackRefused(Exception):  # noqa: N818
    """This cannot be packed like that; the message says what to do instead."""


class Options(Struct, frozen=True, kw_only=True):
    """What the command line says."""

    dataset: Dataset
    folder: Path
    order: str = "lexical"
    shard_bytes: int = 256 * 1024**2
    largest_bytes: int = 1024**2
    jobs: int = 16
    resume: bool = False
    source: str | None = None
    settle_seconds: float = SETTLE_SECONDS
    keep_seconds: float = KEEP_SECONDS


class LeftOut(Struct, frozen=True):
    """An object that is not in the pack, and why."""

    key: str
    reason: str


class Report(Struct, kw_only=True):
    """What came of it."""

    pack: str | None = None
    generation: int = 0
    plan: Summary
    requests_before: int = 0
    requests_after: int = 0
    objects: int = 0
    packed_objects: int = 0
    packed_bytes: int = 0
    shard_files: int = 0
    shard_file_bytes: int = 0
    index_bytes: int = 0
    left_out_count: int = 0
    left_out: list[LeftOut] = msgspec.field(default_factory=list)
    changed: bool = True
    resumed_shards: int = 0
    requests: int = 0
    seconds: float = 0.0


def plan_only(store: Store, options: Options, watcher: Watcher) -> Report:
    """What `pack` would do. Writes nothing to the store."""
    with ExitStack() as stack:
        before = _before(store, Place(options.dataset.prefix), options.folder, stack)
        if _opens(before):
            _refuse_nothing(store, options.dataset)
            _refuse_overlap(store, options.dataset.prefix)
        watcher.stage("listing", None, None)
        return _planned(_plan(store, before, (), options))


def pack(store: Store, options: Options, watcher: Watcher) -> Report:
    """Packs a prefix. PackRefused, Locked, LockLost, PackDamaged, StoreError, OSError."""
    begun = time.monotonic()
    place = Place(options.dataset.prefix)
    with PackLock(store, place.lock) as lock, ExitStack() as stack:
        job = _Job(store, place, options, watcher, stack)
        report = job.run(lock.check)
    report.requests = store.requests
    report.seconds = round(time.monotonic() - begun, 3)
    return report


def _opens(before: Before) -> bool:
    """Whether it is the prefix's first pack, or the first since one was dropped."""
    return before.manifest is None or before.manifest.state == "dropped"


def _refuse_nothing(store: Store, dataset: Dataset) -> None:
    if next(iter(store.listing(dataset.prefix)), None) is None:
        raise PackRefused(f"no keys begin with {dataset}: nothing to pack")


def _refuse_overlap(store: Store, prefix: str) -> None:
    other = overlapping(prefix, load_all(store))
    if other is not None:
        raise PackRefused(
            f"s3://{other.bucket}/{other.prefix} is packed, and shares keys with this prefix: "
            "a key may be in one pack only"
        )


class _Job:
    def __init__(
        self, store: Store, place: Place, options: Options, watcher: Watcher, stack: ExitStack
    ) -> None:
        self._store = store
        self._place = place
        self._options = options
        self._watcher = watcher
        self._before = _before(store, place, options.folder, stack)
        self._left_out: list[LeftOut] = []
        self._left_out_count = 0

    def run(self, check: Callable[[], None]) -> Report:
        """All steps; `check` raises where the lock is lost."""
        unfinished = self._unfinished()
        opened = self._open()
        if unfinished.runs:
            self._watcher.say(f"{len(unfinished.runs)} shards are done already")
        resumed = len(unfinished.runs)
        self._watcher.stage("listing", None, None)
        done = placed(self._runs(unfinished), _any_position(self._runs(unfinished)))
        plan = _plan(self._store, self._before, done, self._options)
        report = _planned(plan)
        report.resumed_shards = resumed
        if plan.summary.idle and self._options.source is None and self._is_whole():
            unfinished.forget()
            clean(self._store, self._place, self._options.keep_seconds)
            return self._unchanged(report)
        self._write(plan, unfinished, check)
        manifest = self._publish(plan, unfinished, opened, check)
        unfinished.forget()
        clean(self._store, self._place, self._options.keep_seconds)
        return self._finished(report, manifest)

    def _is_whole(self) -> bool:
        manifest = self._before.manifest
        return manifest is not None and manifest.state == "whole"

    def _unfinished(self) -> Unfinished:
        options = self._options
        generation = self._before.manifest.generation if self._before.manifest else 0
        start = Start(
            new_id(),
            generation,
            options.order,
            options.shard_bytes,
            options.largest_bytes,
            options.source,
        )
        found = find_start(self._store, self._place)
        # An opening manifest was written by the very pack that was interrupted.
        opening = self._before.manifest is not None and self._before.manifest.state == "opening"
        if found is not None and options.resume:
            if found.after_generation not in (generation, generation - opening):
                self._watcher.say("another pack was made since: beginning anew")
            elif _ways(found) != _ways(start):
                raise PackRefused(
                    f"the unfinished pack was begun with {_said(found)}: go on in the same way, "
                    "or begin anew without --resume"
                )
            else:
                unfinished = Unfinished(self._store, self._place, options.folder, found)
                self._watcher.stage("resuming", None, None)
                unfinished.resume(lambda size: self._watcher.advance(0, size))
                return unfinished
        elif found is not None:
            self._watcher.say("an unfinished pack is thrown away (--resume would go on with it)")
        unfinished = Unfinished(self._store, self._place, options.folder, start)
        unfinished.forget()
        unfinished = Unfinished(self._store, self._place, options.folder, start)
        unfinished.begin()
        return unfinished

    def _open(self) -> float:
        """Tells gateways that a first pack is under way; since when they have been told."""
        manifest = self._before.manifest
        if _opens(self._before):
            _refuse_nothing(self._store, self._options.dataset)
        self._refuse_overlap()
        if manifest is None or manifest.state == "dropped":
            manifest = Manifest(
                state="opening",
                generation=(manifest.generation if manifest is not None else 0) + 1,
                pack_id=new_id(),
                bucket=self._options.dataset.bucket,
                prefix=self._place.prefix,
                tool=tool(),
                created=moment(self._store.seconds()),
                overrides_through=manifest.overrides_through if manifest is not None else 0,
            )
            publish(self._store, self._place, manifest)
            self._before.manifest = manifest
            try:
                # Of two that open at once at least one sees the other.
                self._refuse_overlap()
            except PackRefused:
                generation = manifest.generation + 1
                publish(
                    self._store,
                    self._place,
                    msgspec.structs.replace(manifest, state="dropped", generation=generation),
                )
                raise
        return seconds_of(manifest.created)

    def _refuse_overlap(self) -> None:
        _refuse_overlap(self._store, self._place.prefix)

    def _write(self, plan: Plan, unfinished: Unfinished, check: Callable[[], None]) -> None:
        summary, options = plan.summary, self._options
        self._watcher.stage(
            "packing",
            summary.read_objects + summary.moved_objects,
            summary.read_bytes + summary.moved_bytes,
        )
        sealed = build(
            self._outcomes(plan, unfinished),
            unfinished.folder,
            shard_bytes=options.shard_bytes,
            largest_bytes=options.largest_bytes,
            generation=self._next_generation(),
            first_number=unfinished.next_number,
            took=lambda task: self._watcher.advance(1, task.size_bytes),
            left_out=self._leave_out,
        )
        # One shard is uploaded while the next is written, never more: disk and memory are bounded.
        with ThreadPoolExecutor(1, thread_name_prefix="upload") as thread:
            under_way: Future[None] | None = None
            for shard in sealed:
                if under_way is not None:
                    under_way.result()
                check()
                under_way = thread.submit(self._upload, unfinished, shard)
            if under_way is not None:
                under_way.result()

    def _outcomes(self, plan: Plan, unfinished: Unfinished) -> Iterator[Outcome]:
        shards = self._before.manifest.shards if self._before.manifest is not None else ()
        tasks = plan.tasks(self._options.order, unfinished.folder)
        yield from read_in_order(
            self._store,
            tasks,
            self._options.jobs,
            lambda number: self._place.shard(shards[number].sha256),
        )
        if self._options.source is not None:
            yield from made_objects(
                self._store,
                self._options.source,
                self._place.prefix,
                self._before,
                self._runs(unfinished),
                self._options.largest_bytes,
            )

    def _upload(self, unfinished: Unfinished, sealed: Sealed) -> None:
        unfinished.upload(sealed, lambda _: None)

    def _publish(
        self, plan: Plan, unfinished: Unfinished, opened: float, check: Callable[[], None]
    ) -> Manifest:
        options, store, place = self._options, self._store, self._place
        left = opened + options.settle_seconds - store.seconds()
        if left > 0:
            self._watcher.say(f"waiting {left:.0f} s until every gateway has taken notice")
            time.sleep(left)
        before = self._before
        through = before.manifest.overrides_through if before.manifest is not None else 0
        overrides: Overrides = read_overrides(store, place, through)
        self._watcher.stage("indexing", None, None)
        path = unfinished.folder / "index.lmdb"
        contents = write_index(
            path,
            store.listing(place.prefix),
            before,
            plan.worn,
            self._runs(unfinished),
            overrides,
            _scope(before, options),
        )
        store.put_file(place.index(contents.file.sha256), path, lambda _: None)
        manifest = Manifest(
            state="whole",
            generation=self._next_generation(),
            pack_id=unfinished.start.pack_id,
            bucket=options.dataset.bucket,
            prefix=place.prefix,
            tool=tool(),
            created=moment(store.seconds()),
            order=options.order,
            objects=contents.objects,
            packed_objects=contents.packed_objects,
            packed_bytes=contents.packed_bytes,
            largest_bytes=options.largest_bytes,
            shards=contents.shards,
            index=contents.file,
            overrides_through=overrides.through,
            originals_gone_through=before.gone_through,
        )
        check()
        publish(store, place, manifest)
        return manifest

    def _next_generation(self) -> int:
        manifest = self._before.manifest
        return (manifest.generation if manifest is not None else 0) + 1

    def _leave_out(self, task: Task, error: StoreError) -> None:
        self._left_out_count += 1
        if len(self._left_out) < _REPORTED:
            self._left_out.append(LeftOut(task.key, str(error)))

    def _runs(self, unfinished: Unfinished) -> list[Path]:
        return [unfinished.runs[number] for number in sorted(unfinished.runs)]

    def _unchanged(self, report: Report) -> Report:
        manifest = self._before.manifest
        assert manifest is not None  # noqa: S101 - `_is_whole` was asked
        report.changed = False
        return self._finished(report, manifest)

    def _finished(self, report: Report, manifest: Manifest) -> Report:
        report.pack = manifest.pack_id
        report.generation = manifest.generation
        report.objects = manifest.objects
        report.packed_objects = manifest.packed_objects
        report.packed_bytes = manifest.packed_bytes
        report.shard_files = len(manifest.shards)
        report.shard_file_bytes = sum(shard.size_bytes for shard in manifest.shards)
        report.index_bytes = manifest.index.size_bytes if manifest.index is not None else 0
        report.left_out = self._left_out
        report.left_out_count = self._left_out_count
        return report


def _before(store: Store, place: Place, folder: Path, stack: ExitStack) -> Before:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = load_current(store, place)
    if manifest is None or manifest.state != "whole":
        return Before(manifest, None, Overrides())
    index = stack.enter_context(fetch_index(store, place, manifest, folder))
    return Before(manifest, index, read_overrides(store, place, manifest.overrides_through))


def _plan(store: Store, before: Before, done: Iterable[Keyed[Record]], options: Options) -> Plan:
    return make_plan(
        store,
        before,
        done,
        options.folder,
        prefix=options.dataset.prefix,
        order=options.order,
        shard_bytes=options.shard_bytes,
        scope=_scope(before, options),
    )


def _scope(before: Before, options: Options) -> Scope:
    suffixes = SUFFIXES[options.source] if options.source is not None else ()
    return Scope(options.largest_bytes, before.gone_through, suffixes)


def _planned(plan: Plan) -> Report:
    before, after = plan.summary.requests_saved
    return Report(plan=plan.summary, requests_before=before, requests_after=after)


def _any_position(runs: Iterable[Path]) -> dict[str, int]:
    return {read_head(run).shard.sha256: 0 for run in runs}


def _ways(start: Start) -> tuple[object, ...]:
    return start.order, start.shard_bytes, start.largest_bytes, start.source


def _said(start: Start) -> str:
    source = f" --from {start.source}" if start.source is not None else ""
    return (
        f"--order {start.order} --shard-size {start.shard_bytes} "
        f"--largest {start.largest_bytes}{source}"
    )
