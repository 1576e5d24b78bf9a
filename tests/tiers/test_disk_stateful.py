"""The disk tier against a dict: any sequence of operations, with restarts, and never a wrong byte,
never a forgotten object remembered, never more than the capacity."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.errors import TierFull
from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    CHUNK_BYTES,
    MIB,
    SMALL_BYTES,
    cache_config,
    content,
    get,
    info,
    on_disk_bytes,
    put,
    version,
)

CAPACITY_BYTES = 5 * MIB
T = TypeVar("T")

objects = st.builds(
    version,
    st.sampled_from([f"k{number}" for number in range(12)]),
    st.sampled_from([1, 5000, SMALL_BYTES, SMALL_BYTES + 1, CHUNK_BYTES, CHUNK_BYTES * 3 + 5]),
    st.sampled_from(["e1", "e2"]),
)


class DiskMachine(RuleBasedStateMachine):
    """`known` is what may be recalled; bytes need no model, they follow from the name."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.path = Path(tempfile.mkdtemp())
        self.known: dict[ObjectRef, ObjectInfo] = {}
        self.metrics = Metrics()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def start(self) -> None:
        self.tier = DiskTier(cache_config(self.path, CAPACITY_BYTES), self.metrics)
        self.run(self.tier.start())

    @rule(one=objects)
    def keep(self, one: ObjectVersion) -> None:
        try:
            self.run(put(self.tier, one))
        except TierFull:
            return
        assert self.run(get(self.tier, one)) in (None, content(one))

    @rule(one=objects)
    def read(self, one: ObjectVersion) -> None:
        assert self.run(get(self.tier, one)) in (None, content(one))

    @rule(one=objects)
    def remember(self, one: ObjectVersion) -> None:
        self.run(self.tier.remember(one.ref, info(one)))
        self.known[one.ref] = info(one)

    @rule(one=objects)
    def recall(self, one: ObjectVersion) -> None:
        assert self.tier.recall(one.ref) == self.known.get(one.ref)

    @rule(one=objects)
    def forget(self, one: ObjectVersion) -> None:
        remembered = self.known.pop(one.ref, None)
        self.run(self.tier.forget(one.ref))
        assert self.tier.recall(one.ref) is None
        if remembered == info(one):
            assert self.run(get(self.tier, one)) is None

    @rule()
    def settle(self) -> None:
        self.run(self.tier.held_bytes("main", "bucket", ""))

    @rule()
    def restart(self) -> None:
        self.run(self.tier.close())
        self.start()

    @invariant()
    def within_capacity(self) -> None:
        assert on_disk_bytes(self.path) <= CAPACITY_BYTES
        assert self.metrics.registry.get_sample_value("feedrack_cache_corrupt_total") == 0

    def teardown(self) -> None:
        self.run(self.tier.close())
        self.loop.close()
        shutil.rmtree(self.path)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
