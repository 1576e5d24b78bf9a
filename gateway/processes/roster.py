"""Who should live, who does, and what to do about the difference. Pure: events in, actions out.

The supervisor tells what happened (`ready`, `gone`, `restart`, `drain`) and asks for what to do now
(`step`) after every event, and at `wake_at`.
"""

from msgspec import Struct

from gateway.processes.control import Order, Role

# Deaths closer together than this are one spell of trouble; the first death of a spell is made
# good at once, further ones after pauses that double.
_SPELL_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# How long a worker may take to serve, and a keeper to stand by. (A keeper that begins recovers its
# disk, however long that takes.)
_START_SECONDS = 60.0
# How long a worker that retires may wait for its clients to leave, before it drains.
_RETIRED_SECONDS = 6 * 3600.0
# What a process that drains may take longer than its requests may: a disk writes what it has.
_GRACE_SECONDS = 30.0


class Member(Struct):
    """One child. `orders` are those given to it. `waits`: it stands by for the keeper that is to
    go, `prepared` once it could begin."""

    role: Role
    number: int
    generation: int
    since: float
    waits: bool = False
    prepared: bool = False
    serving: bool = False
    orders: tuple[Order, ...] = ()

    @property
    def stays(self) -> bool:
        """Whether it was not told to end."""
        return "drain" not in self.orders and "retire" not in self.orders


class Spawn(Struct, frozen=True):
    """Start a child; it is a member from now on."""

    role: Role
    number: int
    generation: int
    waits: bool = False


class Tell(Struct, frozen=True):
    """Give a child an order."""

    number: int
    order: Order


class Kill(Struct, frozen=True):
    """End a child that does not end by itself."""

    number: int
    reason: str


Action = Spawn | Tell | Kill


class _Trouble(Struct):
    deaths: int = 0
    died_at: float = float("-inf")
    not_before: float = float("-inf")


class Roster:
    """One keeper and `workers` workers, kept alive.

    `up` once all have served, `settled` while all that are wanted serve, in the wanted generation,
    `over` when a drain has ended the last. `failed`: a child died before the node was up.
    """

    def __init__(self, *, workers: int, drain_seconds: float) -> None:
        self.members: dict[int, Member] = {}
        self.generation = 1
        self.up = False
        self.failed = False
        self.draining = False
        self._workers = {1: workers}
        self._drain_seconds = {1: drain_seconds}
        self._fallback: int | None = None
        self._numbers = 0
        self._trouble: dict[Role, _Trouble] = {"keeper": _Trouble(), "worker": _Trouble()}

    # What happened

    def prepared(self, number: int) -> None:
        """A child that stands by could begin."""
        member = self.members.get(number)
        if member is not None:
            member.prepared = True

    def ready(self, number: int, now: float) -> None:
        """A child serves."""
        member = self.members.get(number)
        if member is not None:
            member.serving = True
            member.since = now

    def gone(self, number: int, now: float) -> bool:
        """A child has ended. Whether that takes the node back to the configuration before."""
        member = self.members.pop(number, None)
        if member is None or not member.stays or self.draining:
            return False
        trouble = self._trouble[member.role]
        if now - trouble.died_at > _SPELL_SECONDS:
            trouble.deaths = 0
        pause = _FIRST_PAUSE_SECONDS * 2.0 ** (trouble.deaths - 1) if trouble.deaths else 0.0
        trouble.deaths += 1
        trouble.died_at = now
        trouble.not_before = now + min(pause, _LONGEST_PAUSE_SECONDS)
        if not self.up:
            self.failed = True
        elif (
            not member.serving
            and member.generation == self.generation
            and self._fallback is not None
        ):
            self.generation, self._fallback = self._fallback, None
            return True
        return False

    def restart(self, *, workers: int, drain_seconds: float) -> None:
        """Everyone is to be replaced, one at a time, by a new generation. Before the last restart
        has settled, that one is given up for this one."""
        latest = max(self._workers) + 1
        self._workers[latest] = workers
        self._drain_seconds[latest] = drain_seconds
        if self._fallback is None:
            self._fallback = self.generation
        self.generation = latest

    def drain(self) -> None:
        """The node is to end."""
        self.draining = True

    # What to do

    @property
    def over(self) -> bool:
        return self.draining and not self.members

    @property
    def settled(self) -> bool:
        staying = [member for member in self.members.values() if member.stays]
        return len(staying) == 1 + self._workers[self.generation] and all(
            member.serving and member.generation == self.generation for member in staying
        )

    def step(self, now: float) -> list[Action]:
        """What to do now. What is returned is taken as done."""
        if self.draining:
            return [*self._overdue(now), *self._wind_down(now)]
        return [*self._overdue(now), *self._keep_keeper(now), *self._keep_workers(now)]

    def seen_settled(self) -> bool:
        """Whether it is settled; then the node is up, and a restart is over for good."""
        if not self.settled:
            return False
        self.up = True
        self._fallback = None
        return True

    def wake_at(self, now: float) -> float:
        """When `step` has something to do even if nothing happens; infinity where never."""
        times = [
            deadline for member in self.members.values() for deadline in self._deadline(member)
        ]
        if not self.draining:
            times += [each.not_before for each in self._trouble.values() if each.not_before > now]
        return min(times, default=float("inf"))

    def _keep_keeper(self, now: float) -> list[Action]:
        keepers = [keeper for keeper in self._of("keeper") if not keeper.waits]
        waiting = [keeper for keeper in self._of("keeper") if keeper.waits and keeper.stays]
        successors = [keeper for keeper in waiting if keeper.generation == self.generation]
        actions: list[Action] = [
            self._tell(keeper, "drain", now) for keeper in waiting if keeper not in successors
        ]
        if not keepers:
            if successors:
                successors[0].waits = False
                actions.append(self._tell(successors[0], "go", now))
            elif now >= self._trouble["keeper"].not_before:
                actions.append(self._spawn("keeper", now))
        elif keepers[0].generation != self.generation and keepers[0].stays:
            staying = self._staying()
            replaced = len(staying) == self._workers[self.generation] and all(
                worker.serving and worker.generation == self.generation for worker in staying
            )
            if replaced and not successors:
                # It comes as far as it can beside the one that still serves.
                actions.append(self._spawn("keeper", now, waits=True))
            elif replaced and successors[0].prepared:
                actions.append(self._tell(keepers[0], "drain", now))
        return actions

    def _keep_workers(self, now: float) -> list[Action]:
        staying = self._staying()
        current = [worker for worker in staying if worker.generation == self.generation]
        former = [worker for worker in staying if worker.generation != self.generation]
        surplus = len(staying) - self._workers[self.generation]
        if surplus < 0:
            if now < self._trouble["worker"].not_before:
                return []
            return [self._spawn("worker", now) for _ in range(-surplus)]
        if former and all(worker.serving for worker in current):
            if surplus:
                return [self._tell(former[0], "retire", now)]
            if now >= self._trouble["worker"].not_before:
                return [self._spawn("worker", now)]
        elif not former and surplus and all(worker.serving for worker in current):
            return [self._tell(worker, "retire", now) for worker in current[-surplus:]]
        return []

    def _wind_down(self, now: float) -> list[Action]:
        actions: list[Action] = []
        workers = self._of("worker")
        for keeper in self._of("keeper"):
            if (keeper.waits or not workers) and "drain" not in keeper.orders:
                actions.append(self._tell(keeper, "drain", now))
            elif "announce" not in keeper.orders and "drain" not in keeper.orders:
                actions.append(self._tell(keeper, "announce", now))
        actions += [
            self._tell(worker, "drain", now) for worker in workers if "drain" not in worker.orders
        ]
        return actions

    def _overdue(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for member in self.members.values():
            if all(now < deadline for deadline in self._deadline(member)):
                continue
            if "retire" in member.orders and "drain" not in member.orders:
                actions.append(self._tell(member, "drain", now))
            else:
                what = "does not end" if "drain" in member.orders else "does not come to serve"
                actions.append(Kill(member.number, what))
                # Once is enough; its end will be told.
                member.since = float("inf")
        return actions

    def _deadline(self, member: Member) -> list[float]:
        if "drain" in member.orders:
            seconds = self._drain_seconds[member.generation] + _GRACE_SECONDS
            return [member.since + seconds]
        if "retire" in member.orders:
            return [member.since + _RETIRED_SECONDS]
        starts = member.role == "worker" and not member.serving
        if starts or (member.waits and not member.prepared):
            return [member.since + _START_SECONDS]
        return []

    def _of(self, role: Role) -> list[Member]:
        return [member for member in self.members.values() if member.role == role]

    def _staying(self) -> list[Member]:
        return [member for member in self._of("worker") if member.stays]

    def _spawn(self, role: Role, now: float, *, waits: bool = False) -> Spawn:
        self._numbers += 1
        number, generation = self._numbers, self.generation
        self.members[number] = Member(role, number, generation, now, waits)
        return Spawn(role, number, generation, waits)

    def _tell(self, member: Member, order: Order, now: float) -> Tell:
        member.orders = (*member.orders, order)
        if order != "announce":
            member.since = now
        return Tell(member.number, order)
