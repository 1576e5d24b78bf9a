"""What a cluster needs, told from what Slurm says of itself."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.checking import Check, all_well, check
from scheduler_plugin.facts import (
    Facts,
    Folder,
    parse_config,
    parse_features,
    parse_leaves,
    parse_release,
    slurm_user,
)
from scheduler_plugin.lines import lines, lua_lines, merged_parameters

# As 22.05.8 and 24.11.5 write it, but for the lines that nobody asks about.
_CONFIG_22 = """\
Configuration data as of 2026-11-30T07:46:20
BurstBufferType         = (null)
JobSubmitPlugins        = lua
PlugStackConfig         = /etc/slurm/plugstack.conf
PrologEpilogTimeout     = 65534
PrologSlurmctld         = /usr/lib/feedrack/feedrack-prolog
SchedulerParameters     = bf_interval=5,ignore_prefer_validation,nohold_on_prolog_fail
SchedulerType           = sched/backfill
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE
SlurmUser               = slurm(64030)
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
TopologyPlugin          = topology/tree

Slurmctld(primary) at vm is UP
"""
_CONFIG_24 = _CONFIG_22.replace("22.05.8", "24.11.5").replace(
    "PrologSlurmctld         =",
    "PrologSlurmctld[0]      = /etc/slurm/site-prolog\nPrologSlurmctld[1]      =",
)
_OURS = "-- feedrack-affinity 0.1.0: written by us\n"
_BUILT_FOR_24 = b"\x7fELF..feedrack-built-for 24.11.05\0"
_APART = {"n1": ("rack1", "n1"), "n2": ("rack2", "n2")}
_RACKS = {"n1": "rack1", "n2": "rack2"}
_BUILT_FOR_21 = b"\x7fELF..feedrack-built-for 21.08.08\0"
_FOLDERS = [
    Folder(
        path=f"/run/feedrack-affinity/{name}",
        owner_id=64030,
        mode=0o700,
        file_system="tmpfs",
        reachable=True,
    )
    for name in ("rankings", "requests", "staged")
]
_WELL = Facts(
    etc="/etc/slurm",
    spank_path="/usr/lib/feedrack/feedrack_spank.so",
    prolog_path="/usr/lib/feedrack/feedrack-prolog",
    beside_path="/etc/slurm/feedrack.lua",
    requests_path="/run/feedrack-affinity/requests",
    config=_CONFIG_22,
    features={"n1": ("rack1", "n1"), "n2": ("gpu", "rack1", "n2")},
    racks={"n1": "rack1", "n2": "rack1"},
    plugstack="# ours\noptional /usr/lib/feedrack/feedrack_spank.so\n",
    prologs={},
    job_submit=_OURS,
    spank=b"\x7fELF..feedrack-built-for 22.05.08\0..",
    prolog=b"\x7fELF..feedrack-requests /run/feedrack-affinity/requests\0..",
    affinity_config_path="/etc/feedrack/affinity.toml",
    has_affinity_config=True,
    wants_burst_buffer=False,
    folders=_FOLDERS,
)


def _with(**changes: object) -> Facts:
    return msgspec.structs.replace(_WELL, **changes)


def _config(key: str, value: str, **changes: object) -> Facts:
    told = [
        f"{key} = {value}" if line.startswith((f"{key} ", f"{key}[")) else line
        for line in _CONFIG_22.splitlines()
    ]
    return _with(config="\n".join(told), **changes)


def _staging(kind: str, script: str | None, conf: str = "Directive = FEEDRACK # ours") -> Facts:
    return _config(
        "BurstBufferType", kind, wants_burst_buffer=True, burst_buffer=script,
        burst_buffer_conf=conf,
    )  # fmt: skip


def _wrong(facts: Facts) -> list[Check]:
    return [each for each in check(facts) if each.state != "ok"]


def test_a_cluster_that_has_all_of_it_lacks_nothing() -> None:
    assert _wrong(_WELL) == []
    assert all_well(check(_WELL))
    assert [line for line in lines(_WELL) if line.needed] == []


def test_what_is_there_needs_nothing_to_be_done() -> None:
    assert {each.to_do for each in check(_WELL)} == {""}


def test_a_prolog_may_be_one_of_several() -> None:
    facts = _with(config=_CONFIG_24, spank=b"feedrack-built-for 24.11.05\0")
    assert _wrong(facts) == []


@pytest.mark.parametrize(
    ("facts", "name", "to_do"),
    [
        (_with(job_submit=None), "job_submit.lua", "install --write"),
        (_with(job_submit="function slurm_job_submit()"), "job_submit.lua", "add the lines"),
        (_with(job_submit="-- mine, not feedrack-affinity 1: x"), "job_submit.lua", "add the"),
        (_with(spank=None), "SPANK plugin", "install --write"),
        (_with(spank=b"\x7fELF"), "SPANK plugin", "move"),
        (_with(spank=_BUILT_FOR_21), "SPANK plugin", "headers"),
        (_with(prolog=None), "prolog's program", "install --write"),
        (_with(prolog=b"feedrack-requests /run/elsewhere\0"), "prolog's program", "--write"),
        (_with(closed=["/usr/lib/feedrack/feedrack-prolog"]), "files for all", "chmod a+rX"),
        (_with(has_affinity_config=False), "affinity.toml", "name your gateways"),
        (_staging("burst_buffer/lua", None), "burst_buffer.lua", "install --write"),
        (_staging("burst_buffer/lua", "-- x"), "burst_buffer.lua", "a cluster has one"),
        (_staging("burst_buffer/datawarp", _OURS), "BurstBufferType", "burst_buffer/lua"),
        (_config("SLURM_VERSION", "21.08.8", spank=_BUILT_FOR_21), "Slurm release", "22.05"),
        (_config("SLURM_CONF", "/opt/slurm/etc/slurm.conf"), "slurm.conf's folder",
         "--etc /opt/slurm/etc"),
        (_config("JobSubmitPlugins", "(null)"), "JobSubmitPlugins", "lua"),
        (_config("JobSubmitPlugins", "require_timelimit,luau"), "JobSubmitPlugins", "lua"),
        (_config("SchedulerType", "sched/builtin"), "SchedulerType", "backfill"),
        (_config("SelectType", "select/linear"), "SelectType", "cons_tres"),
        (_config("SchedulerParameters", "bf_interval=5"), "ignore_prefer_validation", "refused"),
        (_config("SchedulerParameters", "ignore_prefer_validation"), "bf_interval", "=5"),
        (_config("SchedulerParameters", "ignore_prefer_validation,bf_interval=60"),
         "bf_interval", "=5"),
        (_config("PrologSlurmctld", "(null)"), "PrologSlurmctld", "PrologSlurmctld=/usr"),
        (_config("PrologSlurmctld", "/etc/slurm/own"), "PrologSlurmctld", "from /etc/slurm/own"),
        (_with(plugstack=None), "plugstack.conf", "optional /usr/lib"),
        (_with(plugstack="optional other.so"), "plugstack.conf", "optional /usr/lib"),
        (_with(plugstack="required /usr/lib/feedrack/feedrack_spank.so"), "plugstack.conf",
         "not required"),
        (_with(plugstack="optional /elsewhere/feedrack_spank.so"), "plugstack.conf", "/usr/lib"),
        (_config("SLURM_VERSION", "24.11.5", spank=_BUILT_FOR_24, features=_APART, racks=_RACKS),
         "a feature of all nodes", "feedrack"),
        (_staging("burst_buffer/lua", _OURS, "# Directive=FEEDRACK\nDirective=BB_LUA\n"),
         "burst_buffer.conf", "Directive=FEEDRACK"),
        (_with(features={"n1": ("rack1",)}), "nodes' own names", "own name"),
        (_with(features={"n1": ("n1",)}), "nodes' racks", "its rack"),
        (_with(racks={"n1": "rack1"}), "nodes' racks", "--rack"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_and_said_how_to_mend(facts: Facts, name: str, to_do: str) -> None:
    [wrong] = _wrong(facts)
    assert wrong.name == name
    assert wrong.state == "missing"
    assert to_do in wrong.to_do
    assert not all_well(check(facts))


@pytest.mark.parametrize(
    ("change", "to_do"),
    [
        ({"owner_id": None}, "install -d -m 0700 -o slurm"),
        ({"owner_id": 0}, "chown slurm"),
        ({"mode": 0o750}, "chmod 0700"),
        ({"mode": 0o1777}, "chmod 0700"),
        ({"file_system": "nfs4"}, "local disk"),
        ({"file_system": "lustre"}, "local disk"),
        ({"file_system": "fuse.sshfs"}, "local disk"),
        ({"reachable": False}, "let slurm pass"),
    ],
)
def test_a_folder_is_local_and_slurm_users_own(change: dict[str, object], to_do: str) -> None:
    broken = msgspec.structs.replace(_FOLDERS[0], **change)
    [wrong] = _wrong(_with(folders=[broken, *_FOLDERS[1:]]))
    assert wrong.name == "folder rankings"
    assert to_do in wrong.to_do


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk"])
def test_a_local_file_system_is_one(kind: str) -> None:
    folders = [msgspec.structs.replace(each, file_system=kind) for each in _FOLDERS]
    assert _wrong(_with(folders=folders)) == []


def test_a_script_that_calls_ours_will_do() -> None:
    text = "\n".join(line.text for line in lua_lines("/etc/slurm/feedrack.lua"))
    assert _wrong(_with(job_submit=f"function slurm_job_submit()\nend\n{text}")) == []


def test_a_sites_prolog_that_calls_ours_will_do() -> None:
    calls = {"/etc/slurm/own": "#!/bin/sh\n/usr/lib/feedrack/feedrack-prolog\n"}
    facts = _config("PrologSlurmctld", "/etc/slurm/own", prologs=calls)
    assert _wrong(facts) == []
    assert [line for line in lines(facts) if line.needed] == []


def test_without_a_controller_that_is_said_and_the_rest_is_checked() -> None:
    wrong = _wrong(_with(config=None, features=None))
    assert [each.state for each in wrong] == ["unknown"] * 5
    assert wrong[0].found == "does not answer"
    missing = _wrong(_with(config=None, features=None, spank=None))
    assert [each.name for each in missing if each.state == "missing"] == ["SPANK plugin"]


@pytest.mark.parametrize(
    ("told", "note"),
    [
        ("22.05.8", "arrays are left alone"),
        ("26.05.1", "newer than what is supported (25.11)"),
        ("25.11.0-0rc1", ""),
    ],
)
def test_releases_with_a_note_will_do(told: str, note: str) -> None:
    facts = _config("SLURM_VERSION", told)
    [found] = [each for each in check(facts) if each.name == "Slurm release"]
    assert found.state == "ok"
    assert note in found.found


def test_many_nodes_are_not_all_named() -> None:
    facts = _with(
        features={f"n{number}": ("rack1",) for number in range(1000)},
        racks={f"n{number}": "rack1" for number in range(1000)},
    )
    [wrong] = _wrong(facts)
    assert wrong.found == "1000 of 1000 lack it: n0, n1, n2, n3, n4, …"


# The lines for slurm.conf


def _texts(facts: Facts) -> list[str]:
    return [line.text for line in lines(facts) if line.needed]


def test_a_bare_cluster_is_told_all_lines() -> None:
    facts = _with(
        config="SLURM_VERSION = 24.11.5\nSLURM_CONF = /etc/slurm/slurm.conf\n",
        plugstack=None,
        features={"n1": (), "n2": ("gpu",)},
        wants_burst_buffer=True,
    )
    assert _texts(facts) == [
        "JobSubmitPlugins=lua",
        "SchedulerParameters=bf_interval=5,ignore_prefer_validation",
        "PrologSlurmctld=/usr/lib/feedrack/feedrack-prolog",
        "BurstBufferType=burst_buffer/lua",
        "Directive=FEEDRACK",
        "optional /usr/lib/feedrack/feedrack_spank.so",
        "NodeName=n1 Features=rack1,n1,feedrack",
        "NodeName=n2 Features=gpu,rack1,n2,feedrack",
    ]


def test_a_feature_of_all_nodes_is_needed_from_24_11_on() -> None:
    apart = {"features": _APART, "racks": _RACKS}
    assert _wrong(_with(**apart)) == []
    assert _texts(_with(**apart)) == []
    assert _texts(_config("SLURM_VERSION", "24.11.5", spank=_BUILT_FOR_24, **apart)) == [
        "NodeName=n1 Features=rack1,n1,feedrack",
        "NodeName=n2 Features=rack2,n2,feedrack",
    ]


def test_a_sites_own_settings_are_kept() -> None:
    facts = _config("JobSubmitPlugins", "require_timelimit")
    assert _texts(facts) == ["JobSubmitPlugins=require_timelimit,lua"]
    facts = _config("SchedulerParameters", "max_rpc_cnt=150,bf_interval=60,bf_continue")
    assert _texts(facts) == [
        "SchedulerParameters=max_rpc_cnt=150,bf_continue,bf_interval=5,ignore_prefer_validation"
    ]


def test_a_sites_own_prolog_is_told_to_call_ours() -> None:
    [line] = [line for line in lines(_config("PrologSlurmctld", "/etc/slurm/own")) if line.needed]
    assert line.file == "/etc/slurm/own"
    assert line.text == "/usr/lib/feedrack/feedrack-prolog"


def test_a_topology_is_a_hint_that_is_not_needed() -> None:
    [line] = lines(_config("TopologyPlugin", "topology/none"))
    assert not line.needed


_PARAMETER = st.sampled_from(
    ["bf_interval=3", "bf_interval=60", "bf_interval=x", "bf_continue", "max_rpc_cnt=9",
     "ignore_prefer_validation"]
)  # fmt: skip


@given(st.lists(_PARAMETER, max_size=6))
def test_merging_ends_and_loses_nothing_of_the_sites(given_: list[str]) -> None:
    merged = merged_parameters(given_)
    assert merged_parameters(merged) == merged
    kept = [each for each in given_ if not each.startswith("bf_interval")]
    assert [each for each in merged if each in kept] == kept


# What Slurm writes


def test_features_are_read_by_node() -> None:
    told = "n1|rack1,n1\nn2|(null)\nn3|\n"
    assert parse_features(told) == {"n1": ("rack1", "n1"), "n2": (), "n3": ()}


def test_the_lowest_switches_are_racks() -> None:
    told = (
        "SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=rack2 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=rack[1-2]\n"
    )
    assert parse_leaves(told) == {"rack1": "n[1-2]", "rack2": "n[3-4]"}


def test_blocks_are_racks() -> None:
    told = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"
    assert parse_leaves(told) == {"b1": "n[1-2]"}


def test_a_release_is_three_numbers() -> None:
    assert parse_release("slurm-wlm 22.05.8") == (22, 5, 8)
    assert parse_release("25.11") == (25, 11, 0)
    assert parse_release("none") is None


def test_slurm_user_is_a_name_and_an_id() -> None:
    assert slurm_user({"SlurmUser": "slurm(64030)"}) == ("slurm", 64030)
    assert slurm_user({"SlurmUser": "slurm\nUser=root(0)"}) is None
    assert slurm_user({}) is None


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    parse_config(text)
    parse_features(text)
    parse_leaves(text)
    check(_with(config=text, plugstack=text, job_submit=text, spank=text.encode()))
    lines(_with(config=text, plugstack=text))
