"""Slurm as the daemon sees it: one seam, over its commands or over pyslurm."""
