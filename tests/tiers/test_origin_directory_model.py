"""A directory origin and a dict are told the same and must say the same, whatever the keys."""

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gateway.errors import NoSuchKey, PreconditionFailed
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import (
    ANY,
    ONLY_NEW,
    copy,
    listed,
    md5,
    page,
    put,
    read_all,
)

T = TypeVar("T")

# Few segments, so that keys are often prefixes of one another.
SEGMENTS = st.sampled_from(
    ["a", "b", "a-b", "a0", "", ".", "..", "\0", "é", "k" * 300, "%00", ".nfs1", ".feedrack",
     ".feedrack~o", ".feedrack~q", ".feedrack~state"]
)  # fmt: skip
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join).filter(bool)
CONTENT = count()


class Machine(RuleBasedStateMachine):
    keys = Bundle("keys")

    @initialize(able=st.booleans())
    def begin(self, able: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.able = able
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.open_origin()
        self.run(self.origin.create_bucket("model"))

    def open_origin(self) -> None:
        self.origin = DirectoryOrigin(
            "nas", Path(self.folder.name), Metrics(), attributes=self.able, exchanges=self.able
        )
        self.run(self.origin.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def ref(self, key: str) -> ObjectRef:
        return ObjectRef("nas", "model", key)

    @rule(target=keys, key=KEYS)
    def name(self, key: str) -> str:
        return key

    @rule(key=keys)
    def put(self, key: str) -> None:
        data = str(next(CONTENT)).encode()
        self.run(put(self.origin, self.ref(key), data, {"x-amz-meta-key": str(len(key))}))
        self.objects[key] = (data, str(len(key)))

    @rule(key=keys)
    def put_only_new(self, key: str) -> None:
        data = str(next(CONTENT)).encode()
        work = put(self.origin, self.ref(key), data, {"x-amz-meta-key": "new"}, ONLY_NEW)
        try:
            self.run(work)
        except PreconditionFailed:
            assert key in self.objects
        else:
            assert key not in self.objects
            self.objects[key] = (data, "new")

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.run(self.origin.delete(self.ref(key), ANY))
        self.objects.pop(key, None)

    @rule(source=keys, to=keys)
    def copy(self, source: str, to: str) -> None:
        if source == to:
            return
        try:
            self.run(copy(self.origin, self.ref(source), self.ref(to)))
        except NoSuchKey:
            assert source not in self.objects
        else:
            self.objects[to] = self.objects[source]

    @rule(key=keys)
    def read(self, key: str) -> None:
        try:
            info = self.run(self.origin.head(self.ref(key)))
            data = self.run(read_all(self.origin, self.ref(key)))
        except NoSuchKey:
            assert key not in self.objects
        else:
            assert (data, info.headers["x-amz-meta-key"]) == self.objects[key]
            assert info.etag == md5(data)

    @rule()
    def restart(self) -> None:
        self.run(self.origin.close())
        self.open_origin()

    @rule(prefix=KEYS, delimiter=st.sampled_from(["", "/", "a", "-", "~"]), cut=st.integers(0, 9))
    def list_part(self, prefix: str, delimiter: str, cut: int) -> None:
        prefix = prefix[:cut]
        names = self.run(listed(self.origin, "model", prefix=prefix, delimiter=delimiter, limit=2))
        assert names == list(folded(sorted(self.objects, key=str.encode), prefix, delimiter))

    @rule(after=KEYS)
    def list_after(self, after: str) -> None:
        found = self.run(page(self.origin, "model", after=after))
        wanted = [key for key in self.objects if key.encode() > after.encode()]
        assert [entry.key for entry in found.objects] == sorted(wanted, key=str.encode)

    @precondition(lambda self: hasattr(self, "origin"))
    @invariant()
    def lists_what_it_holds(self) -> None:
        found = self.run(page(self.origin, "model"))
        assert {entry.key: entry.etag for entry in found.objects} == {
            key: md5(data) for key, (data, _) in self.objects.items()
        }

    def teardown(self) -> None:
        if not hasattr(self, "origin"):
            return
        for key in self.objects:
            self.run(self.origin.delete(self.ref(key), ANY))
        # Nothing is left of the objects: no folders, no records.
        self.run(self.origin.delete_bucket("model"))
        self.run(self.origin.close())
        self.runner.close()
        self.folder.cleanup()


def folded(keys: list[str], prefix: str, delimiter: str) -> Iterator[str]:
    """What a listing of `keys` shows."""
    last = ""
    for key in keys:
        if not key.startswith(prefix):
            continue
        place = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if place < 0 else key[: place + len(delimiter)]
        if place < 0 or name != last:
            yield name
        last = name if place >= 0 else last


TestModel = Machine.TestCase
TestModel.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
