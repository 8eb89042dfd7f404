"""System checks: wrong settings and handlers, with an id, the reason and a hint. No I/O."""
