"""The tenants of the configuration with their secrets read."""

from msgspec import Struct

from gateway.config import Config, Rule, Secret, read_secret


class Tenant(Struct, frozen=True):
    """Who a set of keys belongs to. `rules` is the policy, in the order of the configuration."""

    name: str
    access_key: str
    secret: Secret
    rules: tuple[Rule, ...] = ()


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
