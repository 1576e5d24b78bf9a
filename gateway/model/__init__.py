"""The nouns every floor shares: objects, versions, ranges, conditions, checksums, bodies. Pure."""
