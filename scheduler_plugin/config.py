"""The daemon's configuration: TOML in, frozen Structs out, unknown keys refused by their path."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from scheduler_plugin.dataset import BadHint, Dataset, parse_dataset

_Seconds = Annotated[float, Meta(gt=0)]


class ConfigError(Exception):
    """The configuration is wrong; the message names the path of what is."""


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GatewaysConfig(_Section, frozen=True):
    """The admin ports, of which one that answers is enough."""

    admin_urls: Annotated[tuple[str, ...], Meta(min_length=1)]
    token_file: Path
    timeout_seconds: _Seconds = 10.0


class SlurmConfig(_Section, frozen=True):
    """`commands_folder`: where `sinfo`, `squeue` and `scontrol` are; without it they are looked for
    in PATH. `pyslurm`: asks through that library, where it is installed for this release."""

    commands_folder: Path | None = None
    pyslurm: bool = False
    poll_seconds: _Seconds = 2.0
    timeout_seconds: _Seconds = 20.0


class FoldersConfig(_Section, frozen=True):
    """Folders of SlurmUser's own, on a local disk or in memory."""

    rankings: Path = Path("/run/feedrack-affinity/rankings")
    requests: Path = Path("/run/feedrack-affinity/requests")
    staged: Path = Path("/run/feedrack-affinity/staged")
    state: Path = Path("/var/lib/feedrack-affinity")


class RankingConfig(_Section, frozen=True):
    """How often rankings are made, how long one is believed, and for how long a dataset that a job
    has named is ranked though nothing is counted under its name. `datasets` always are."""

    refresh_seconds: _Seconds = 15.0
    valid_seconds: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    remember_days: Annotated[float, Meta(ge=0)] = 7.0
    datasets: tuple[str, ...] = ()


class WarmingConfig(_Section, frozen=True):
    """Whether racks are warmed for jobs; of jobs that wait, how long before they are expected to
    start. A dataset is not asked for again in the same rack for `again_seconds`."""

    enabled: bool = True
    ahead_seconds: Annotated[float, Meta(ge=0)] = 600.0
    again_seconds: Annotated[float, Meta(ge=0)] = 600.0


class WaitingConfig(_Section, frozen=True):
    """The longest wait that `--dataset-wait` may ask for."""

    most_minutes: Annotated[int, Meta(ge=1, le=100_000)] = 1440


class Config(_Section, frozen=True):
    """All of it. `nodes` and `racks`: gateways' names to Slurm's, of those that differ. `readers`:
    by tenant, Slurm's users and Unix groups (`@group`) who may know of its datasets; `*` is
    everybody."""

    gateways: GatewaysConfig
    slurm: SlurmConfig = SlurmConfig()
    folders: FoldersConfig = FoldersConfig()
    nodes: Mapping[str, str] = {}
    racks: Mapping[str, str] = {}
    readers: Mapping[str, tuple[str, ...]] = {}
    ranking: RankingConfig = RankingConfig()
    warming: WarmingConfig = WarmingConfig()
    waiting: WaitingConfig = WaitingConfig()

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Those that are always ranked."""
        return tuple(map(parse_dataset, self.ranking.datasets))


def load(path: Path) -> Config:
    """What the file says. ConfigError names what is off."""
    try:
        with path.open("rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(raw)


def parse(raw: Mapping[str, Any]) -> Config:
    """The configuration in a parsed TOML document. ConfigError names the path of what is off."""
    try:
        config = msgspec.convert(raw, Config, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace("$.", "")) from error
    for url in config.gateways.admin_urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"gateways.admin_urls: {url!r} is not http:// or https://")
    if config.ranking.valid_seconds < 2 * config.ranking.refresh_seconds:
        raise ConfigError("ranking.valid_seconds: less than twice refresh_seconds")
    try:
        _ = config.datasets
    except BadHint as error:
        raise ConfigError(f"ranking.datasets: {error}") from error
    return config


def read_token(config: GatewaysConfig) -> str:
    """The admin ports' token. ConfigError, which never shows it."""
    try:
        token = config.token_file.read_text("utf-8").strip()
    except OSError as error:
        where = config.token_file
        raise ConfigError(f"gateways.token_file: {where}: {error.strerror}") from error
    except UnicodeDecodeError:
        # Not chained: that error carries what the file holds.
        raise ConfigError(f"gateways.token_file: {config.token_file} is not text") from None
    if not token or not token.isprintable():
        raise ConfigError(f"gateways.token_file: {config.token_file} holds no token")
    return token


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise ValueError(f"{value!r} is not an absolute path")
        return Path(value)
    raise NotImplementedError(kind)
