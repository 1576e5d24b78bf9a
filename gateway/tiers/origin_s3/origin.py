"""An S3 service as origin: AWS, or anything that speaks its API.

The parts stand beside this file, one per verb family. They share `client`: one aiobotocore client
with one connection pool, retries with full jitter, and the rule that an origin that cannot be
reached is TierUnavailable and never a missing key.
"""

from gateway.tiers.origin_s3.listing import Listing
from gateway.tiers.origin_s3.multipart import Multipart
from gateway.tiers.origin_s3.reading import Reading
from gateway.tiers.origin_s3.relay import Relaying


class S3Origin(Reading, Multipart, Listing, Relaying):
    """`Origin` over an S3 service. Without an access key in its configuration it takes AWS's
    default chain: environment, profile, instance or container role."""
