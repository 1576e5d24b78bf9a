"""What Redis was asked and what it took, by its own count, between two moments."""

import time
from collections.abc import Mapping
from typing import Self

import msgspec
import redis
from msgspec import Struct

from benchmarks.member import Redis

# What looking itself asks.
_OWN = frozenset({"info", "client|setinfo", "client|setname", "hello", "ping", "memory|usage"})


class Load(Struct, frozen=True, kw_only=True):
    """What Redis did in `seconds`. `commands` are those that were executed, the ones within scripts
    too, by name; `calls` those that clients sent. CPU is the whole process's."""

    seconds: float
    commands: Mapping[str, int]
    received_bytes: int
    sent_bytes: int
    cpu_seconds: float

    @property
    def executed(self) -> int:
        return sum(self.commands.values())

    @property
    def moved_bytes(self) -> int:
        return self.received_bytes + self.sent_bytes

    def beyond(self, idle: Self) -> "Load":
        """Without what an idle cluster asks in as long a time; nothing falls below zero."""
        share = self.seconds / idle.seconds if idle.seconds else 0.0
        return Load(
            seconds=self.seconds,
            commands={
                name: max(0, count - round(share * idle.commands.get(name, 0)))
                for name, count in self.commands.items()
            },
            received_bytes=max(0, self.received_bytes - round(share * idle.received_bytes)),
            sent_bytes=max(0, self.sent_bytes - round(share * idle.sent_bytes)),
            cpu_seconds=max(0.0, self.cpu_seconds - share * idle.cpu_seconds),
        )


class Totals(Struct, frozen=True, kw_only=True):
    """Redis's figures since it was started, at the moment `at`."""

    at: float
    commands: Mapping[str, int]
    received_bytes: int
    sent_bytes: int
    cpu_seconds: float

    def since(self, before: Self) -> Load:
        """What came since an earlier moment, without what looking took."""
        return Load(
            seconds=self.at - before.at,
            commands={
                name: count - before.commands.get(name, 0)
                for name, count in self.commands.items()
                if count != before.commands.get(name, 0)
            },
            received_bytes=self.received_bytes - before.received_bytes,
            sent_bytes=self.sent_bytes - before.sent_bytes,
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
        )


class Coordinator:
    """Looks at a Redis; use `totals` before and after, `idle` for as long in between."""

    def __init__(self, server: Redis) -> None:
        self.client = redis.Redis(server.host, server.port, socket_timeout=10)

    def close(self) -> None:
        self.client.close()

    def totals(self) -> Totals:
        return totals_of(self.client.info("everything"), time.monotonic())

    def idle(self, seconds: float) -> Load:
        """What is asked while nobody does anything."""
        before = self.totals()
        time.sleep(seconds)
        return self.totals().since(before)

    def memory_bytes(self, pattern: str) -> dict[str, int]:
        """What each key takes, by name, its name and its place in the table of keys included."""
        return {
            key.decode("utf-8", "replace"): int(self.client.memory_usage(key, samples=0) or 0)
            for key in self.client.scan_iter(match=pattern, count=1000)
        }


def totals_of(info: Mapping[str, object], at: float) -> Totals:
    """From `INFO everything`, as the client gives it."""
    numbers = msgspec.convert(
        {name: info[name] for name in _NUMBERS}, type=dict[str, float], strict=False
    )
    commands = {
        name.removeprefix("cmdstat_"): _calls(told)
        for name, told in info.items()
        if name.startswith("cmdstat_")
    }
    return Totals(
        at=at,
        commands={name: count for name, count in commands.items() if name not in _OWN},
        received_bytes=int(numbers["total_net_input_bytes"]),
        sent_bytes=int(numbers["total_net_output_bytes"]),
        cpu_seconds=numbers["used_cpu_user"] + numbers["used_cpu_sys"],
    )


_NUMBERS = (
    "total_net_input_bytes",
    "total_net_output_bytes",
    "used_cpu_user",
    "used_cpu_sys",
)


def _calls(told: object) -> int:
    assert isinstance(told, Mapping)
    return int(told["calls"])
