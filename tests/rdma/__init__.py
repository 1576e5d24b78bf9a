"""RDMA: what runs anywhere here, in verbs/ what runs in a virtual machine with a device, in
link/ what runs in the second of two on one wire."""
