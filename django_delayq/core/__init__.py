"""Pure values and decisions: no Django, no I/O."""
