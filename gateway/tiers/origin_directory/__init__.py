"""A folder as an origin, for a NAS that is used, filled or left by others as well.

origin.py     DirectoryOrigin: the Origin, composed of the modules below
backend.py    threads, counting, opening buckets
mount.py      the root, and whether it is still mounted
folders.py    folders by descriptor: no step follows a link
paths.py      keys as names in a folder, and back
records.py    ETag, headers, tags, checksums, parts of an object
objects.py    finding an object; turning a file into a folder
reading.py    an object being read
writing.py    bodies, copies and completions on their way in
drafts.py     objects in the making
scratch.py    where all things new begin, and what a crash left of them
commit.py     the instants at which an object changes
deleting.py   one key or many
uploads.py    multipart uploads on disk
assembly.py   what the parts of an upload make
walk.py       a bucket's keys in order
listing.py    pages
buckets.py    creating, deleting, tagging buckets
locks.py      who may change what now
recovery.py   what a start mends
errors.py     the system's errors as S3's
"""

from gateway.tiers.origin_directory.origin import DirectoryOrigin

__all__ = ["DirectoryOrigin"]
