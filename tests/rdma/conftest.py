"""What wants verbs runs where they are: in a virtual machine (`make test-rdma`), never skipped."""

import os

# The machine's role: "one" alone, "first" or "second" of two on one wire.
_ROLE = os.environ.get("FEEDRACK_RDMA_GUEST")

collect_ignore = [
    folder for folder, role in (("verbs", "one"), ("link", "second")) if role != _ROLE
]
