"""Payloads over RDMA (docs/rdma.md). What both ends share, `token`, `wire`, `device` and `verbs`,
imports nothing else of the gateway; `feedrack.rdma` is the other end."""
