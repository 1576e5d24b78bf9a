"""Run in the second of two virtual machines on one wire, while the first runs `server.sh`."""
