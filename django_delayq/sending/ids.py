"""Ids for messages that get none from their sender."""

import os
import time

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]  # in ASCII order, as ids sort
_RANDOM_BITS = 80
_LENGTH_IN_PAIRS = 11  # 62 ** 22 is the first even power above 2 ** 128


def new_id() -> str:
    """22 letters and digits: milliseconds, then 80 random bits, so that ids sort by when they were made.

    The layout is that of a ULID. The random bits come from the system, so that forked processes don't share them.
    """
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8))
    pairs = []
    for _ in range(_LENGTH_IN_PAIRS):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))
