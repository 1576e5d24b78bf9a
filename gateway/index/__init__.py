"""What this node holds, and who holds what."""
