"""Sends Slurm jobs to the racks that hold their data. Filled by an issue to come."""
