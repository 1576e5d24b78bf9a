"""The scheduler's side: sends jobs to the nodes and racks that hold their data (docs/slurm.md)."""
