"""A process that leaves a heap of stale alarms: it sends many messages for soon, and cancels them in time."""

import time

import django

from django_delayq import Send, cancel_delay_messages, send_delay_messages

MANY = 10_000
DUE_S = 8
PLACED_S = 4
"""Seconds after which workers have set their alarms."""


def main() -> None:
    """Do so. What could not be cancelled in time runs."""
    ids = [f"heap-{time.monotonic_ns()}-{number}" for number in range(MANY)]
    send_delay_messages(Send("plain", 1, id=id, delay=DUE_S, queue="q0") for id in ids)
    time.sleep(PLACED_S)
    for begin in range(0, MANY, 500):
        cancel_delay_messages(*ids[begin : begin + 500])


if __name__ == "__main__":
    django.setup()
    main()
