"""The S3 gateway: see docs/architecture.md for the floors."""
