"""Django's tasks as delayed messages. `functions.py` has those that the tests run."""
