"""Small virtual machines in which verbs work on a machine that has none: QEMU under emulation,
Debian's kernel with soft-RoCE, and this machine's files as they are.

    python -m tests.rdma.vm run -- COMMAND…
    python -m tests.rdma.vm pair --first COMMAND -- COMMAND…
    python -m tests.rdma.vm test
"""
