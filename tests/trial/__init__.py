"""Tiny networks against exact arithmetic: is everything that is claimed true? `make trial` asks a hundred thousand
times."""
