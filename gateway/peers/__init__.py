"""The port that other nodes ask."""
