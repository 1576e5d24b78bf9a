"""The front half of every request: match → authenticate → authorise. Synchronous, and the same for
whichever lane a request comes by."""

from collections.abc import Callable

from gateway.auth.identity import Identity
from gateway.auth.policy import authorise, authorise_past_packs, needed_besides
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.auth.sigv4_parse import printable
from gateway.auth.tenants import load_tenants
from gateway.config import Config, S3Config
from gateway.errors import AccessDenied, InvalidArgument, NoSuchBucket
from gateway.model.reserved import refusal
from gateway.s3.headers import with_hoisted
from gateway.s3.operation import Operation
from gateway.s3.record import BYPASS, PACKS_HEADER, Record
from gateway.s3.route import match
from gateway.store.buckets import Bucket

RDMA_SESSIONS = frozenset(("PrepareRdma", "ReadyRdma", "CancelRdma"))
_READS = frozenset(("GetObject", "HeadObject"))
_BY_KEY = frozenset(("DeleteObjects", "GetObjects"))
_LISTINGS = frozenset(
    ("ListObjects", "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads")
)


class Request:
    """What was asked, and by whom. `head` carries the headers that a presigned URL has in its
    query; `secure`: it came over TLS; `past_packs`: the origin's own objects are meant, packs not
    looked into."""

    __slots__ = ("_bucket", "_resolve", "head", "identity", "operation", "past_packs", "secure")

    def __init__(
        self,
        head: RequestHead,
        operation: Operation,
        identity: Identity,
        resolve: Callable[[str], Bucket],
        *,
        secure: bool,
        past_packs: bool,
    ) -> None:
        self.head = head
        self.operation = operation
        self.identity = identity
        self.secure = secure
        self.past_packs = past_packs
        self._resolve = resolve
        self._bucket: Bucket | None = None

    @property
    def bucket(self) -> Bucket:
        """The bucket asked about. NoSuchBucket."""
        if self._bucket is None:
            self._bucket = self._resolve(self.operation.bucket)
        return self._bucket

    @property
    def anonymous(self) -> bool:
        return self.identity.tenant is None

    @property
    def relays(self) -> bool:
        """Whether the bucket lives on an S3 service. NoSuchBucket."""
        return self.bucket.origin.relays

    def authorise(self, operation: str, bucket: str, key: str) -> None:
        """Nothing where the caller may do `operation` there. AccessDenied, before anything is
        said of what exists; and what answers for a key that is there past packs only.

        Every key that an operation names comes by here, wherever in the request it stands.
        """
        try:
            own = bucket == self.operation.bucket
            public_read = (self.bucket if own else self._resolve(bucket)).public_read
        except NoSuchBucket:
            public_read = False
        authorise(self.identity, operation, bucket, key, public_read=public_read)
        if self.past_packs:
            authorise_past_packs(self.identity, operation, bucket)
            return
        refused = refusal(operation, key)
        if refused is not None:
            raise refused


class Entry:
    """Lets requests in, or says in S3's words why not. `resolve` finds a bucket by its name."""

    def __init__(
        self, config: S3Config, authenticator: Authenticator, resolve: Callable[[str], Bucket]
    ) -> None:
        self._domain = config.virtual_host_domain
        self._authenticator = authenticator
        self._resolve = resolve

    def admit(self, head: RequestHead, record: Record, *, secure: bool) -> Request:
        """The request that `head` makes, once its sender may make it; the record learns of both.

        Raises whatever S3Error `route.match`, `Authenticator.authenticate` or the policy has.
        """
        meant = with_hoisted(head)
        operation = record.operation = match(meant, self._domain)
        identity = self._authenticator.authenticate(head)
        if identity.tenant is not None:
            record.tenant = identity.tenant.name
        past_packs = PACKS_HEADER in head.fields and _asks_past_packs(head, identity)
        request = Request(
            meant, operation, identity, self._resolve, secure=secure, past_packs=past_packs
        )
        _authorise(request)
        record.past_packs = past_packs
        return request


def authenticator_of(config: Config) -> Authenticator:
    """Who knows the configuration's tenants. ConfigError where a secret cannot be read."""
    return Authenticator(
        load_tenants(config),
        region=config.s3.region,
        clock_skew_seconds=config.s3.clock_skew_seconds,
    )


def _asks_past_packs(head: RequestHead, identity: Identity) -> bool:
    """Whether the header says so: AccessDenied where it is not signed, InvalidArgument where it
    says anything else."""
    if PACKS_HEADER not in identity.signed_headers:
        raise AccessDenied(
            "There were headers present in the request which were not signed",
            fields={"HeadersNotSigned": PACKS_HEADER},
        )
    value = head.fields[PACKS_HEADER]
    if value != BYPASS:
        raise InvalidArgument(
            f"{PACKS_HEADER} can only be {BYPASS}",
            fields={"ArgumentName": PACKS_HEADER, "ArgumentValue": printable(value)},
        )
    return True


def _authorise(request: Request) -> None:
    """Asks for the operation itself; a DeleteObjects or GetObjects asks for each of its keys
    later."""
    operation = request.operation
    if operation.name == "ListBuckets":
        return
    if operation.name in RDMA_SESSIONS:
        # Each tenant's own; what may be moved over it is asked of each request.
        if request.anonymous:
            raise AccessDenied
        return
    if operation.name in _BY_KEY and not request.anonymous:
        if request.past_packs:
            authorise_past_packs(request.identity, operation.name, operation.bucket)
        return
    if operation.name == "GetObjects":
        # Who is nobody may read what all may, and gets no further elsewhere.
        request.authorise("GetObject", operation.bucket, "")
        return
    if operation.name == "GetPacks":
        # Which packs there are is said to whoever may list them.
        request.authorise("ListObjectsV2", operation.bucket, operation.query.get("prefix", ""))
        return
    key = operation.query.get("prefix", "") if operation.name in _LISTINGS else operation.key
    request.authorise(operation.name, operation.bucket, key)
    if operation.name not in _READS:
        for needed in needed_besides(request.head.headers):
            request.authorise(needed, operation.bucket, key)
