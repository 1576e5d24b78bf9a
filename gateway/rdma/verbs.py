"""libibverbs through pyverbs: the one place that imports it, and only once a device is opened.

Debian's python3-pyverbs (44 and later) and PyPI's pyverbs (59) both: the constants live in other
modules in each. Sources: ibv_reg_mr(3), ibv_post_send(3), ibv_modify_qp(3), ibv_poll_cq(3) of
rdma-core; InfiniBand Architecture Specification 1.4, 9.7 and 10.3 for states and orders.
"""

import ctypes
import ipaddress
import secrets
import select
from collections.abc import Sequence
from enum import EnumType
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from gateway.rdma.channels import open_channel, turn
from gateway.rdma.device import Completion, RdmaUnavailable, VerbFailed
from gateway.rdma.gids import compressed, exploded, preference
from gateway.rdma.reaching import reach
from gateway.rdma.wire import MTUS, PairAddress

_ENUM_HOMES = ("pyverbs.libibverbs_enums", "pyverbs.enums", "pyverbs.librdmacm_enums")
_MODULES = ("addr", "cq", "device", "mr", "pd", "qp", "wr", "pyverbs_error")
# 4.096 us * 2^17, about half a second, before each of the retries. Seven would mean "for ever" to
# soft-RoCE.
_ACK_TIMEOUT = 17
_READS = 16
_RETRIES = 6
_MIN_RNR_TIMER = 12
_HOPS = 64
_PORT_ACTIVE = 4
_LINK_INFINIBAND = 1
_POLLED = 64
_CQ_ENTRIES = 16_384


class _Library:
    """pyverbs, whichever release: its modules as attributes, constants by `constant`."""

    def __init__(self) -> None:
        try:
            for name in _MODULES:
                setattr(self, name, import_module(f"pyverbs.{name}"))
        except ImportError as error:
            raise RdmaUnavailable(f"pyverbs cannot be imported: {error}", verbs=True) from error
        self._constants: dict[str, int] = {}
        for name in _ENUM_HOMES:
            try:
                home = vars(import_module(name))
            except ImportError:
                continue
            # 44 has them in the module, 59 in its enums alone.
            enums: list[Any] = [each for each in home.values() if isinstance(each, EnumType)]
            for enum in enums:
                self._constants |= {member.name: member.value for member in enum}
            self._constants |= {key: value for key, value in home.items() if key.startswith("IBV_")}
        errors: Any = self.pyverbs_error
        self.Error: type[Exception] = errors.PyverbsError

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def constant(self, name: str) -> int:
        """A constant of libibverbs."""
        try:
            return int(self._constants[name])
        except KeyError:
            raise RdmaUnavailable(f"this pyverbs knows no {name}", verbs=True) from None


def open_device(
    name: str | None = None, port: int | None = None, gid_index: int | None = None
) -> "VerbsDevice":
    """Opens the device of that name, or the first with an active port. RdmaUnavailable."""
    library = _Library()
    try:
        found = [each.name.decode() for each in library.device.get_device_list()]
    except (library.Error, OSError) as error:
        raise RdmaUnavailable(f"RDMA devices cannot be listed: {error}") from error
    if not found:
        raise RdmaUnavailable("there is no RDMA device")
    if name is not None and name not in found:
        raise RdmaUnavailable(f"there is no RDMA device {name}, but {', '.join(found)}")
    reasons = []
    for each in [name] if name is not None else found:
        try:
            return VerbsDevice(library, each, port, gid_index)
        except RdmaUnavailable as error:
            reasons.append(str(error))
    raise RdmaUnavailable("; ".join(reasons))


class VerbsDevice:
    """A `Device` over libibverbs. Not for several threads at once, but for registering."""

    def __init__(
        self, library: _Library, name: str, port: int | None, gid_index: int | None
    ) -> None:
        self._library = library
        self.name = name
        self._closing: list[Any] = []
        # pyverbs does not look before it uses what was closed.
        self._closed = False
        try:
            with turn.lock:
                self._context = self._opened(library.device.Context(name=name))
            self.port, attributes = self._find_port(port)
            self.gid_index, self.gid = self._find_gid(gid_index, attributes)
            self._domain = self._opened(library.pd.PD(self._context))
            self._channel, self.descriptor = open_channel(
                lambda: library.cq.CompChannel(self._context)
            )
            self._opened(self._channel)
            self.max_completions = min(_CQ_ENTRIES, int(self._context.query_device().max_cqe))
            self._queue = self._opened(
                library.cq.CQ(self._context, self.max_completions, None, self._channel, 0)
            )
            self._queue.req_notify()
        except (library.Error, OSError) as error:
            self.close()
            raise RdmaUnavailable(f"{name} cannot be used: {error}") from error
        except RdmaUnavailable:
            self.close()
            raise
        self.max_message_bytes = int(attributes.max_msg_sz)
        # Two's exponents from 256, counted from 1.
        self.mtu = MTUS[int(attributes.active_mtu) - 1]
        self.lid = int(attributes.lid)
        self.link: Literal["ethernet", "infiniband"] = (
            "infiniband" if int(attributes.link_layer) == _LINK_INFINIBAND else "ethernet"
        )
        limits = self._context.query_device()
        # READs under way on a queue pair: those it answers, and those it asks.
        self.reads = max(1, min(_READS, int(limits.max_qp_rd_atom)))
        self._own_reads = max(1, min(_READS, int(limits.max_qp_init_rd_atom)))

    def register(self, memory: memoryview, *, remote: bool) -> "VerbsRegistration":
        """As `Device.register`."""
        if memory.readonly:
            raise VerbFailed("memory that cannot be written is registered by its address")
        if not memory.nbytes:
            raise VerbFailed("no memory")
        held = (ctypes.c_char * memory.nbytes).from_buffer(memory)
        return self._register(ctypes.addressof(held), memory.nbytes, remote=remote, held=held)

    def register_address(
        self, address: int, size_bytes: int, *, remote: bool, writable: bool = True
    ) -> "VerbsRegistration":
        """As `Device.register_address`; `writable` False: this device may only read it."""
        return self._register(address, size_bytes, remote=remote, writable=writable)

    def register_dmabuf(
        self, descriptor: int, offset: int, size_bytes: int, *, remote: bool
    ) -> "VerbsRegistration":
        """As `Device.register_dmabuf`."""
        self._check_open()
        library = self._library
        try:
            region = library.mr.DmaBufMR(
                self._domain,
                size_bytes,
                self._access(remote=remote, writable=True),
                dmabuf=descriptor,
                offset=offset,
            )
        except (library.Error, OSError) as error:
            raise VerbFailed(f"the dma-buf cannot be registered: {error}") from error
        # Such a region is addressed by the offset that it was registered with.
        return VerbsRegistration(library, region, offset, size_bytes, None)

    async def reach(self, peer: PairAddress) -> None:
        """As `Device.reach`."""
        v1 = "v1" in self._gid_attribute("types", self.gid_index)
        # To these addresses of RoCE v1 there is always a way: they are made of the link's.
        known = v1 and ipaddress.IPv6Address(peer.gid).is_link_local
        if peer.link == self.link == "ethernet" and not known:
            interface = self._gid_attribute("ndevs", self.gid_index)
            await reach(peer.gid, local=self.gid, interface=interface)

    def pair(self, *, depth: int, remote: bool) -> "VerbsPair":
        """As `Device.pair`."""
        return VerbsPair(self._library, self, depth, remote=remote)

    def completions(self) -> Sequence[Completion]:
        """As `Device.completions`."""
        self._check_open()
        library = self._library
        try:
            # get_cq_event waits with Python's lock held, so it is called where it need not.
            if select.select((self.descriptor,), (), (), 0)[0]:
                self._channel.get_cq_event(self._queue)
                self._queue.ack_events(1)
                self._queue.req_notify()
            found: list[Completion] = []
            while True:
                count, polled = self._queue.poll(_POLLED)
                found += [Completion(int(each.wr_id), int(each.status)) for each in polled]
                if count < _POLLED:
                    return found
        except (library.Error, OSError) as error:
            raise VerbFailed(f"completions cannot be taken: {error}") from error

    def close(self) -> None:
        """As `Device.close`."""
        self._closed = True
        # Each must go before what it was made of.
        with turn.lock:
            while self._closing:
                _closed(self._library, self._closing.pop())

    def new_pair(self, depth: int, *, remote: bool) -> Any:
        """A queue pair of pyverbs' in its first state."""
        self._check_open()
        library, constant = self._library, self._library.constant
        qp = library.qp
        capacity = qp.QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        attributes = qp.QPAttr(port_num=self.port)
        attributes.qp_access_flags = self._access(remote=remote, writable=True)
        return qp.QP(
            self._domain,
            qp.QPInitAttr(
                qp_type=constant("IBV_QPT_RC"),
                scq=self._queue,
                rcq=self._queue,
                cap=capacity,
                sq_sig_all=1,
            ),
            attributes,
        )

    def route(self, peer: PairAddress) -> Any:
        """How packets go to a peer, as pyverbs' attributes of a queue pair."""
        library = self._library
        addr = library.addr
        route = addr.GlobalRoute(
            dgid=addr.GID(exploded(peer.gid)),
            sgid_index=self.gid_index,
            hop_limit=_HOPS,
            traffic_class=peer.traffic_class,
        )
        handle = addr.AHAttr(gr=route, is_global=1, port_num=self.port, dlid=peer.lid)
        attributes = library.qp.QPAttr(port_num=self.port)
        attributes.ah_attr = handle
        attributes.dest_qp_num = peer.qpn
        attributes.rq_psn = peer.psn
        # Counted from 1, like `active_mtu`.
        attributes.path_mtu = MTUS.index(min(peer.mtu, self.mtu)) + 1
        attributes.max_dest_rd_atomic = self.reads
        # More than the peer can answer are an invalid request there, and the end of the pair.
        attributes.max_rd_atomic = min(self._own_reads, peer.reads)
        attributes.min_rnr_timer = _MIN_RNR_TIMER
        attributes.timeout = _ACK_TIMEOUT
        attributes.retry_cnt = attributes.rnr_retry = _RETRIES
        return attributes

    def access(self, *, remote: bool) -> int:
        """The rights a queue pair gives its peer."""
        return self._access(remote=remote, writable=True)

    def _access(self, *, remote: bool, writable: bool) -> int:
        constant = self._library.constant
        access = constant("IBV_ACCESS_LOCAL_WRITE") if writable else 0
        if remote:
            access |= constant("IBV_ACCESS_REMOTE_WRITE") | constant("IBV_ACCESS_REMOTE_READ")
        return access

    def _register(
        self,
        address: int,
        size_bytes: int,
        *,
        remote: bool,
        writable: bool = True,
        held: object = None,
    ) -> "VerbsRegistration":
        self._check_open()
        library = self._library
        access = self._access(remote=remote, writable=writable)
        try:
            region = library.mr.MR(self._domain, size_bytes, access, address=address)
        except (library.Error, OSError) as error:
            raise VerbFailed(f"{size_bytes} bytes cannot be registered: {error}") from error
        return VerbsRegistration(library, region, address, size_bytes, held)

    def _check_open(self) -> None:
        if self._closed:
            raise VerbFailed(f"{self.name} was closed")

    def _opened(self, made: Any) -> Any:
        self._closing.append(made)
        return made

    def _find_port(self, wanted: int | None) -> tuple[int, Any]:
        count = int(self._context.query_device().phys_port_cnt)
        if wanted is not None and not 1 <= wanted <= count:
            raise RdmaUnavailable(f"{self.name} has no port {wanted}, but {count}")
        for number in [wanted] if wanted is not None else range(1, count + 1):
            attributes = self._context.query_port(number)
            if int(attributes.state) == _PORT_ACTIVE:
                return number, attributes
        raise RdmaUnavailable(f"no port of {self.name} is active")

    def _find_gid(self, wanted: int | None, attributes: Any) -> tuple[int, str]:
        table = {}
        for index in range(int(attributes.gid_tbl_len)):
            try:
                gid = str(self._context.query_gid(self.port, index))
            except (self._library.Error, OSError):
                continue
            if int(gid.replace(":", ""), 16):
                table[index] = gid
        if wanted is not None:
            if wanted not in table:
                raise RdmaUnavailable(f"{self.name} has no GID at index {wanted}")
            return wanted, compressed(table[wanted])
        if not table:
            raise RdmaUnavailable(f"{self.name} has no GID")
        best = max(
            table, key=lambda index: preference(self._gid_attribute("types", index), table[index])
        )
        return best, compressed(table[best])

    def _gid_attribute(self, name: str, index: int) -> str:
        """`types`: the kind of RoCE. `ndevs`: the network device. Empty where the kernel tells
        nothing."""
        base = Path("/sys/class/infiniband") / self.name / "ports" / str(self.port)
        try:
            return (base / "gid_attrs" / name / str(index)).read_text().strip()
        except OSError:
            return ""


class VerbsRegistration:
    """A `Registration` of libibverbs: a memory region."""

    def __init__(
        self, library: _Library, region: Any, address: int, size_bytes: int, held: object
    ) -> None:
        self._library = library
        self._region = region
        # Keeps the memory from being moved or freed.
        self._held = held
        self.address = address
        self.size_bytes = size_bytes
        self.lkey = int(region.lkey)
        self.rkey = int(region.rkey)

    def close(self) -> None:
        """As `Registration.close`."""
        _closed(self._library, self._region)
        self._held = None


class VerbsPair:
    """A `Pair` of libibverbs."""

    def __init__(self, library: _Library, device: VerbsDevice, depth: int, *, remote: bool) -> None:
        self._library = library
        self._device = device
        self._remote = remote
        self._closed = False
        try:
            self._pair = device.new_pair(depth, remote=remote)
        except (library.Error, OSError) as error:
            raise VerbFailed(f"no queue pair: {error}") from error
        self._write = library.constant("IBV_WR_RDMA_WRITE")
        self._read = library.constant("IBV_WR_RDMA_READ")
        self._signaled = library.constant("IBV_SEND_SIGNALED")
        self.address = PairAddress(
            int(self._pair.qp_num),
            secrets.randbits(24),
            device.gid,
            device.mtu,  # type: ignore[arg-type]
            device.link,
            device.lid,
            reads=device.reads,
        )

    def connect(self, peer: PairAddress) -> None:
        """As `Pair.connect`."""
        if self._closed:
            raise VerbFailed("the queue pair was closed")
        library = self._library
        if peer.link != self._device.link:
            raise VerbFailed(f"one end is on {self._device.link}, the other on {peer.link}")
        attributes = self._device.route(peer)
        attributes.qp_access_flags = self._device.access(remote=self._remote)
        attributes.sq_psn = self.address.psn
        try:
            self._pair.to_rts(attributes)
        except (library.Error, OSError) as error:
            raise VerbFailed(f"the queue pair cannot be connected: {error}") from error

    def write(
        self, work: int, address: int, size_bytes: int, lkey: int, *, to: int, rkey: int
    ) -> None:
        """As `Pair.write`."""
        self._post(self._write, work, address, size_bytes, lkey, to, rkey)

    def read(
        self, work: int, address: int, size_bytes: int, lkey: int, *, source: int, rkey: int
    ) -> None:
        """As `Pair.read`."""
        self._post(self._read, work, address, size_bytes, lkey, source, rkey)

    def fail(self) -> None:
        """As `Pair.fail`."""
        if self._closed:
            return
        library = self._library
        attributes = library.qp.QPAttr(qp_state=library.constant("IBV_QPS_ERR"))
        try:
            self._pair.modify(attributes, library.constant("IBV_QP_STATE"))
        except (library.Error, OSError) as error:
            raise VerbFailed(f"the queue pair cannot be failed: {error}") from error

    def close(self) -> None:
        """As `Pair.close`."""
        _closed(self._library, self._pair)
        self._closed = True

    def _post(
        self, opcode: int, work: int, address: int, size_bytes: int, lkey: int, far: int, rkey: int
    ) -> None:
        if self._closed:
            raise VerbFailed("the queue pair was closed")
        wr, library = self._library.wr, self._library
        # pyverbs wants one part also of nothing; devices pass over an empty one.
        parts = [wr.SGE(address, size_bytes, lkey)]
        request = wr.SendWR(work, opcode=opcode, num_sge=1, sg=parts, send_flags=self._signaled)
        request.set_wr_rdma(rkey, far)
        try:
            self._pair.post_send(request)
        except (library.Error, OSError) as error:
            raise VerbFailed(f"nothing can be posted: {error}") from error


def _closed(library: _Library, made: Any) -> None:
    try:
        made.close()
    except (library.Error, OSError) as error:
        raise VerbFailed(f"it cannot be closed: {error}") from error
