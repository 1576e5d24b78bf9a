"""Which of the two ways Slurm is asked, as the configuration has it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scheduler_plugin.config import SlurmConfig
from scheduler_plugin.slurm.bindings import SlurmBindings
from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import Slurm


@asynccontextmanager
async def open_slurm(config: SlurmConfig) -> AsyncIterator[Slurm]:
    """Slurm, until the end of the context. SlurmUnavailable where pyslurm is to be used, and there
    is none for this release."""
    commands = SlurmCommands(config.commands_folder, timeout_seconds=config.timeout_seconds)
    if not config.pyslurm:
        yield commands
        return
    async with SlurmBindings(commands, timeout_seconds=config.timeout_seconds) as bindings:
        yield bindings
