"""An S3 service as origin: AWS, or anything that speaks its API.

The parts stand beside this file, one per verb family: `origin_s3_reading`, `origin_s3_writing`,
`origin_s3_multipart`, `origin_s3_listing`, `origin_s3_relay`. They share `origin_s3_client`: one
aiobotocore client with one connection pool, retries with full jitter, and the rule that an origin
that cannot be reached is TierUnavailable and never a missing key.
"""

from gateway.tiers.origin_s3_listing import Listing
from gateway.tiers.origin_s3_multipart import Multipart
from gateway.tiers.origin_s3_reading import Reading
from gateway.tiers.origin_s3_relay import Relaying


class S3Origin(Reading, Multipart, Listing, Relaying):
    """`Origin` over an S3 service. Without an access key in its configuration it takes AWS's
    default chain: environment, profile, instance or container role."""
