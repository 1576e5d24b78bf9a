"""The plugin before a real Slurm: controller, authentication and nodes on this machine."""
