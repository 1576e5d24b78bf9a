"""The lines that an operator puts into Slurm's files by hand. Pure; nothing here edits a file."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from scheduler_plugin.checking import (
    BF_INTERVAL_MOST_SECONDS,
    DIRECTIVE,
    SPANK_FILE,
    bf_interval_seconds,
    has_directive,
    lacks_common,
)
from scheduler_plugin.facts import Facts, parameters, parse_config, parse_release, values
from scheduler_plugin.ranking import COMMON_FEATURE

_BF_INTERVAL_SECONDS = 5


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs into `file`, as it stands there; `why` is for who reads it first."""

    file: str
    text: str
    why: str
    needed: bool = True


def lines(facts: Facts) -> list[Line]:
    """What the site's files still lack; without a controller, as if they had nothing yet."""
    config = {} if facts.config is None else parse_config(facts.config)
    return [
        *_settings(facts, config),
        *_plugstack(facts, config),
        *_node_lines(facts, config),
        *_topology(config),
    ]


def lua_lines(beside_path: str) -> list[Line]:
    """Three lines for the end of a site's own job_submit.lua, whose verdict stays the one."""
    why = "at its end; the site's own script goes first, and a failure of ours changes nothing"
    text = (
        f"local site, modify = slurm_job_submit, slurm_job_modify; "
        f'pcall(dofile, "{beside_path}"); local near = slurm_job_submit; slurm_job_modify = modify',
        "function slurm_job_submit(job, parts, uid) local code = site(job, parts, uid)",
        "if code == slurm.SUCCESS and near ~= site then pcall(near, job, parts, uid) end; "
        "return code end",
    )
    return [Line(file="job_submit.lua", text=each, why=why) for each in text]


def _settings(facts: Facts, config: Mapping[str, str]) -> Iterator[Line]:
    plugins = [each for each in config.get("JobSubmitPlugins", "").split(",") if each]
    if "lua" not in plugins:
        yield _conf(
            f"JobSubmitPlugins={','.join([*plugins, 'lua'])}", "every submission is looked at"
        )
    merged = merged_parameters(parameters(config))
    if merged != parameters(config):
        yield _conf(
            f"SchedulerParameters={','.join(merged)}",
            "a preference that cannot be met refuses no job, and is given up within seconds",
        )
    programs = values(config, "PrologSlurmctld")
    called = any(facts.prolog_path in text for text in facts.prologs.values())
    if not programs:
        yield _conf(f"PrologSlurmctld={facts.prolog_path}", "data is warmed where a job starts")
    elif facts.prolog_path not in programs and not called:
        yield Line(
            file=programs[0], text=facts.prolog_path,
            why="a line of the site's own prolog; it ends with 0 within two seconds",
        )  # fmt: skip
    if facts.wants_burst_buffer and config.get("BurstBufferType") != "burst_buffer/lua":
        yield _conf("BurstBufferType=burst_buffer/lua", "jobs may wait until data is staged")
    if facts.wants_burst_buffer and not has_directive(facts.burst_buffer_conf):
        yield Line(
            file=f"{facts.etc}/burst_buffer.conf", text=DIRECTIVE,
            why="what a job's script says that is to wait until its data is staged",
        )  # fmt: skip


def merged_parameters(given: Sequence[str]) -> list[str]:
    """The site's own scheduler parameters, and what they lack."""
    merged = list(given)
    if bf_interval_seconds(given) > BF_INTERVAL_MOST_SECONDS:
        merged = [each for each in merged if each.partition("=")[0] != "bf_interval"]
        merged.append(f"bf_interval={_BF_INTERVAL_SECONDS}")
    if "ignore_prefer_validation" not in merged:
        merged.append("ignore_prefer_validation")
    return merged


def _plugstack(facts: Facts, config: Mapping[str, str]) -> Iterator[Line]:
    given = [line.split()[:2] for line in (facts.plugstack or "").splitlines()]
    wanted = ["optional", facts.spank_path]
    if wanted not in given and ["optional", SPANK_FILE] not in given:
        yield Line(
            file=config.get("PlugStackConfig", f"{facts.etc}/plugstack.conf"),
            text=" ".join(wanted),
            why=f"--dataset, on each host where jobs are submitted; take {SPANK_FILE} there too",
        )


def _node_lines(facts: Facts, config: Mapping[str, str]) -> Iterator[Line]:
    release = parse_release(config.get("SLURM_VERSION", ""))
    common = COMMON_FEATURE if lacks_common(facts, release) else None
    for node, features in (facts.features or {}).items():
        wanted = [each for each in (facts.racks.get(node), node, common) if each is not None]
        lacking = [each for each in wanted if each not in features]
        if lacking:
            yield _conf(
                f"NodeName={node} Features={','.join([*features, *lacking])}",
                "with what the node's line has now; NodeName=DEFAULT may carry what all share",
            )


def _topology(config: Mapping[str, str]) -> Iterator[Line]:
    if config.get("TopologyPlugin") in (None, "topology/none", "topology/default", "topology/flat"):
        yield Line(
            file="slurm.conf",
            text="TopologyPlugin=topology/tree",
            why="if you like: jobs of several nodes stay in one rack; topology.conf then says "
            "SwitchName=RACK Nodes=NODES for each rack",
            needed=False,
        )


def _conf(text: str, why: str) -> Line:
    return Line(file="slurm.conf", text=text, why=why)
