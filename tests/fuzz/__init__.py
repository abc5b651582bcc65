"""Hostile files: does every reader answer with success or with CitrusError, whatever a file holds? `make fuzz` asks
for ten minutes with each of two engines."""
