"""The tenants of the configuration with their secrets read."""

from functools import cached_property

from msgspec import Struct

from gateway.auth.rules import Policy
from gateway.config import Config, Rule, Secret, read_secret


class Tenant(Struct, frozen=True, dict=True):
    """Who a set of keys belongs to. `rules` are the policy's, in the order of the configuration."""

    name: str
    access_key: str
    secret: Secret
    rules: tuple[Rule, ...] = ()

    @cached_property
    def policy(self) -> Policy:
        """The rules, with a memory of their verdicts."""
        return Policy(self.rules)


def load_tenants(config: Config) -> tuple[Tenant, ...]:
    """All tenants, in order. ConfigError names the `tenants[i].secret_key_file` that is wrong."""
    return tuple(
        Tenant(
            tenant.name,
            tenant.access_key,
            read_secret(tenant.secret_key_file, f"tenants[{number}].secret_key_file"),
            tenant.policy,
        )
        for number, tenant in enumerate(config.tenants)
    )
