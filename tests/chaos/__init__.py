"""Chaos: all kinds of faults at random times, against a ledger that stands outside of the system. See `__main__`."""
