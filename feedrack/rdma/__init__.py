"""Objects by RDMA between a gateway and memory of this process: docs/reader.md and docs/rdma.md.

Without a device everything works over HTTP.
"""

from feedrack.rdma.client import BatchRow, Client
from feedrack.rdma.memory import Memory
from feedrack.rdma.moving import Counts
from feedrack.rdma.objects import Result

__all__ = ["BatchRow", "Client", "Counts", "Memory", "Result"]
