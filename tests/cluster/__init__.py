"""The gateway as a process, met as its users meet it."""
