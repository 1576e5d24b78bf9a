"""The object service: S3's verbs over buckets, tiers and origins. Everything S3 means happens here
or below; everything HTTP means happens above.

    reads.py     GetObject, HeadObject
    writes.py    PutObject, CopyObject, DeleteObject(s)
    uploads.py   multipart
    listings.py  buckets, listings, tags, relays
"""

from gateway.store.listings import Listings


class ObjectService(Listings):
    """All of S3 that this node serves. Built in `gateway.app`; closed after the last request."""
