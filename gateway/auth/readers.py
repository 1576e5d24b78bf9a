"""Who may read a whole dataset: for those who place readers by what is told of datasets. Pure."""

from collections.abc import Iterable
from functools import lru_cache

from gateway.auth.rules import Policy
from gateway.config import TenantConfig

EVERYBODY = ("*",)
# What is asked for comes in rounds over all datasets.
_REMEMBERED = 16_384


class Readers:
    """The tenants of the configuration, by what they may read."""

    def __init__(self, tenants: Iterable[TenantConfig]) -> None:
        # A tenant has an entry for each of its access keys.
        self._policies = [(tenant.name, Policy(tenant.policy)) for tenant in tenants]
        self._found = lru_cache(_REMEMBERED)(self._find)

    def of(self, bucket: str, prefix: str, *, public_read: bool) -> tuple[str, ...]:
        """Names of the tenants that may GetObject every key that begins with `prefix`, in order;
        `EVERYBODY` where the bucket is public. A tenant that only several of its rules together
        let do so may be missing."""
        return EVERYBODY if public_read else self._found(bucket, prefix)

    def _find(self, bucket: str, prefix: str) -> tuple[str, ...]:
        found = {
            name
            for name, policy in self._policies
            if policy.allows_all("GetObject", bucket, prefix)
        }
        return tuple(sorted(found))
