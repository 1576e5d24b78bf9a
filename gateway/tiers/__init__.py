"""Where bytes are: local disk, packed shards, origins. One Protocol: `tiers.protocol`."""
