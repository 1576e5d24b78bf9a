"""Packs many small objects into shards. Never imports the gateway."""
