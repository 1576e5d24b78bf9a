"""Other nodes as a tier: their bytes and what they know of objects, asked near before far."""
