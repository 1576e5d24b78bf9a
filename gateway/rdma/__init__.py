"""Objects over RDMA. Filled by an issue to come."""
