"""GetPacks: what a reader on this machine may be handed of a bucket's packs. See docs/reader.md."""

import msgspec

from gateway.s3.answer import Answer
from gateway.s3.call import Call

# An index tells of every key under its pack what these would, and a shard holds their bytes.
_NEEDED = ("GetObject", "ListObjectsV2", "GetObjectTagging")


async def get_packs(call: Call) -> Answer:
    """The packs under a prefix of which the caller may read everything."""
    bucket = call.bucket

    def may(prefix: str) -> bool:
        tenant = call.identity.tenant
        return tenant is not None and all(
            tenant.policy.allows_all(operation, bucket.name, prefix) for operation in _NEEDED
        )

    offer = await call.service.offer_packs(bucket, call.operation.query.get("prefix", ""), may)
    return Answer(
        headers={"content-type": "application/json", "cache-control": "no-store"},
        body=msgspec.json.encode(offer),
    )
