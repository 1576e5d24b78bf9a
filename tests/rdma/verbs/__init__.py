"""Run in a virtual machine with soft-RoCE on one device (`make test-rdma`)."""
