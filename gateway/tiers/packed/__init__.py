"""Shards, on both sides of the cache: the one place of the gateway that knows their format.

growing.py    small objects of the cache, gathered into shards of this node's own
origin.py     an origin whose packed keys answer as before packing (docs/pack-format.md)
  holding.py  the packs of its buckets; reading.py its reads; writing.py its writes
  listing.py  its listings; hidden.py those of versions and uploads
  counting.py what a node holds of a dataset in shards
  known.py    which packs a bucket has, and how current this node's knowledge of them is
  latest.py   a question put to the origin again and again, and dated
  view.py     one pack with what was written over it: what a key is, and where its bytes lie
  log.py      the log of overrides, appended before a write is answered
  files.py    the indexes on this node's disk
  appetite.py one object by a range, or the whole shard: a pure rule
handing.py    open shards for readers on this machine (docs/reader.md)
"""
