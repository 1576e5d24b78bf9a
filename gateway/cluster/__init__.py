"""What nodes agree on through Redis: who is a member, what is being changed, who holds what."""
