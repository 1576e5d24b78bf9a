"""Any S3 service as an origin. The only place that imports aiobotocore and botocore.

origin.py     S3Origin: the Origin, composed of the modules below
client.py     one client: pool, timeouts, retries, how a call fails
reading.py    HeadObject, GetObject
writing.py    PutObject, CopyObject, DeleteObject(s)
multipart.py  multipart uploads
listing.py    buckets and listings, in UTF-8 byte order whatever the origin's
relay.py      requests handed on as they are
upload.py     bodies on their way up, in bounded memory
headers.py    between S3's headers and our values
errors.py     the origin's errors as ours
"""

from gateway.tiers.origin_s3.origin import S3Origin

__all__ = ["S3Origin"]
