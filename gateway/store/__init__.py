"""The object service: S3's meaning over tiers and origins, without HTTP."""
