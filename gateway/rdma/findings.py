"""What was found of one thing that RDMA needs of a host, and what all of it comes to. Pure."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "error", "unknown"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `why` and `do` are empty where it is well.

    An error keeps the gateway from using RDMA at all; a warning makes it slow, or fragile once the
    network is busy; unknown is what cannot be seen from this host.
    """

    name: str
    state: State
    found: str
    why: str = ""
    do: str = ""


def is_used(findings: Sequence[Finding]) -> bool:
    """Whether a gateway on this host will use RDMA."""
    return all(each.state != "error" for each in findings)


def verdict(findings: Sequence[Finding], *, required: bool) -> str:
    """What it comes to, in one sentence."""
    if is_used(findings):
        return "RDMA will be used."
    # The first is what to see to first; what comes after may follow from it.
    reason = next(each for each in findings if each.state == "error")
    end = "feedrack serve will not start" if required else "HTTP carries all bytes"
    return f"RDMA will not be used: {reason.name}: {reason.found}. {end}."
