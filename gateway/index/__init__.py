"""What this node holds."""
