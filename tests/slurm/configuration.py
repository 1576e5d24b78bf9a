"""A lab's slurm.conf and the files beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.ports import own_address, own_name


@dataclass(frozen=True)
class LabNode:
    """A compute node; its own name and its rack's are features of it."""

    name: str
    rack: str
    cpus: int = 2
    memory_mib: int = 1000
    features: tuple[str, ...] = ()


FOUR_NODES = (
    LabNode("n1", "rack1"),
    LabNode("n2", "rack1"),
    LabNode("n3", "rack2"),
    LabNode("n4", "rack2"),
)
ONE_PARTITION = ("main Nodes=ALL Default=YES MaxTime=60 State=UP",)


def slurm_conf(
    folder: Path,
    release: tuple[int, int, int],
    first_port: int,
    nodes: Sequence[LabNode],
    partitions: Sequence[str],
    settings: Mapping[str, str | None],
) -> str:
    """The text of slurm.conf; `settings` add to, replace, or with None remove a line of ours."""
    host, address = own_name(), own_address()
    chosen: dict[str, str | None] = {
        "ClusterName": "lab",
        "SlurmctldHost": f"{host}({address})",
        "SlurmctldPort": str(first_port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/run/munge.sock",
        # Else the daemons listen on all addresses.
        "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=2,sched_interval=2,batch_sched_delay=0,"
        "sched_min_interval=0,ignore_prefer_validation",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "TopologyPlugin": "topology/tree",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "KillWait": "1",
        "CompleteWait": "0",
        "PlugStackConfig": f"{folder}/etc/plugstack.conf",
    }
    if release >= (24, 11, 0):
        # Gone, or no longer a plugin's name.
        del chosen["JobCompType"], chosen["SwitchType"]
    if (folder / "etc" / "job_submit.lua").exists():
        chosen["JobSubmitPlugins"] = "lua"
    chosen |= settings
    lines = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    for number, node in enumerate(nodes, start=1):
        features = ",".join((node.rack, node.name, *node.features))
        lines.append(
            f"NodeName={node.name} NodeHostname={host} NodeAddr={address}"
            f" Port={first_port + number} CPUs={node.cpus} RealMemory={node.memory_mib}"
            f" Feature={features}"
        )
    lines += [f"PartitionName={each}" for each in partitions]
    return "\n".join(lines) + "\n"


def topology_conf(nodes: Sequence[LabNode]) -> str:
    """A switch for each rack, and one above them."""
    racks: dict[str, list[str]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node.name)
    lines = [f"SwitchName={rack} Nodes={','.join(names)}" for rack, names in racks.items()]
    return "\n".join([*lines, f"SwitchName=spine Switches={','.join(racks)}"]) + "\n"


def cgroup_conf(release: tuple[int, int, int]) -> str:
    """None are used; each release wants to hear it in words of its own."""
    return f"CgroupPlugin={'disabled' if release >= (24, 11, 0) else 'cgroup/v1'}\n"
