"""Who of Slurm's users stands for a tenant of the gateways: by the configuration, else the user and
the Unix group of the tenant's name."""

import grp
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler_plugin.knowledge import EVERYBODY
from scheduler_plugin.ranking_file import Readers

# A number and, of a group, those who are in it; None where there is no such name.
FindUser = Callable[[str], int | None]
FindGroup = Callable[[str], tuple[int, Sequence[int]] | None]


def readers_of(
    tenants: Iterable[str],
    mapped: Mapping[str, Sequence[str]],
    *,
    find_user: FindUser,
    find_group: FindGroup,
) -> Readers:
    """Whom what these tenants may read may be told of."""
    users: set[int] = set()
    groups: set[int] = set()
    for tenant in tenants:
        names = (EVERYBODY,) if tenant == EVERYBODY else mapped.get(tenant, (tenant, f"@{tenant}"))
        for name in names:
            if name == EVERYBODY:
                return Readers(everybody=True)
            if name.startswith("@"):
                group = find_group(name[1:])
                if group is not None:
                    groups.add(group[0])
                    users.update(group[1])
            elif (user := find_user(name)) is not None:
                users.add(user)
    return Readers(users=frozenset(users), groups=frozenset(groups))


def find_user(name: str) -> int | None:
    """A user's number, as the system tells it."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def find_group(name: str) -> tuple[int, Sequence[int]] | None:
    """A group's number and the numbers of its listed members; whoever has it as the first group is
    known by its number."""
    try:
        group = grp.getgrnam(name)
    except (KeyError, ValueError):
        return None
    found = (find_user(member) for member in group.gr_mem)
    return group.gr_gid, [each for each in found if each is not None]


def find_user_and_group(name: str) -> tuple[int, int] | None:
    """A user's number and that of the first group; None where there is no such user."""
    try:
        user = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return user.pw_uid, user.pw_gid
