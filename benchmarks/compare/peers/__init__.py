"""The adapters, a module each, which `drive` runs with the contender's own Python.

Each has these functions. A message is a name of `work.HANDLERS`, a number, and a due time in milliseconds, or None for
now.

- `prepare()` makes the tables.
- `send(name, number, due_ms)` sends one message.
- `send_many(name, numbers, due_ms)` sends many, in the fastest documented way.
- `worker()` returns the command of one worker.
"""
