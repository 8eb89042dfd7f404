"""Ids for messages that get none from their sender."""

import os
import time
from collections.abc import Iterator
from functools import lru_cache

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in ASCII order, as ids sort
_PAIRS = [chr(first) + chr(second) for first in _ALPHABET for second in _ALPHABET]
_BASE = len(_PAIRS)
_LETTER_OF_BYTE = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
_RANDOM = 14
_BLOCK = 256


def new_id() -> str:
    """Return 22 letters and digits: 8 for the millisecond, then 14 at random (83 bits), so that ids sort by time.

    The layout follows the ULID's. The system gives the random part: forked processes must not share it.
    """
    return _moment(time.time_ns() // 1_000_000) + _random_letters(_RANDOM)


def new_ids() -> Iterator[str]:
    """Yield ids like those of `new_id` without end, for a bulk send: the random part of many is asked for at once."""
    while True:
        letters = _random_letters(_RANDOM * _BLOCK)
        for start in range(0, len(letters), _RANDOM):
            yield _moment(time.time_ns() // 1_000_000) + letters[start : start + _RANDOM]


def _random_letters(count: int) -> str:
    return os.urandom(count).translate(_LETTER_OF_BYTE).decode()


@lru_cache(maxsize=1)  # a bulk send makes many ids in one millisecond
def _moment(milliseconds: int) -> str:
    high, low = divmod(milliseconds, _BASE * _BASE)
    return _PAIRS[high // _BASE] + _PAIRS[high % _BASE] + _PAIRS[low // _BASE] + _PAIRS[low % _BASE]
