"""Faults, injected for real into processes that train, certify and study: is anything lost, doubled or wrong
afterwards? `make faults` injects all of them, the tests a few."""
