"""What a training process imports: light, and no server in it. Filled by the issues to come."""
