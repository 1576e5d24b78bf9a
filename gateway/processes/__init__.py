"""A node of several processes: supervisor, keeper and workers (docs/workers.md)."""
