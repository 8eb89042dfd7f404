"""Sign the messages that Redis carries, so that workers run only those that a process with the site's SECRET_KEY sent.

The signature is the first of the options in a message's header (records.py), where versions that know nothing of it
pass over it. It covers the id, the body, and all of the header but the times: when a message is due changes in scripts,
which have no key. So anyone who can write to Redis can still remove a message, put back one that has run, or change
when one is due, but can't make one up.
"""

from django.core.signing import Signer
from django.utils.crypto import constant_time_compare

from django_delayq.brokers.redis.records import RS, US

UNSIGNED = (
    "its signature is missing or wrong: nobody with this SECRET_KEY, or one of SECRET_KEY_FALLBACKS, sent it as it is"
)
"""The reason to bury a message that nobody of the site has signed."""

_BEGIN = b'{"sig":"'
_LENGTH = 43
"""The characters of a SHA-256 digest in base 64, without padding."""


class MessageSigner:
    """Signs and checks the messages of one prefix by Django's `Signer`, with its keys and a salt for the prefix."""

    def __init__(self, prefix: str) -> None:
        self._signer = Signer(salt=f"django_delayq.message.{prefix}")

    def signed(self, id: str, queue: str, key: str, flags: str, options: bytes, body: bytes) -> bytes:
        """Return `options`, which `records.pack_options` made, with a signature in them."""
        expires, _, given = options.removesuffix(RS).partition(US)
        rest = b'"' + (b"," + given[1:] if given else b"}")
        signed = US.join((id.encode(), queue.encode(), key.encode(), flags.encode(), expires, rest)) + RS + body
        signature = self._signer.signature(signed).encode()
        return expires + US + _BEGIN + signature + rest + RS

    def has_signed(self, id: bytes, message: bytes) -> bool:
        """Return whether a message, as it is stored, has a valid signature. Nothing in it is decoded."""
        head, _, body = message.partition(RS)
        fields = head.split(US)
        if len(fields) != 8 or not fields[7].startswith(_BEGIN):
            return False
        _, queue, key, flags, _, _, expires, options = fields
        end = len(_BEGIN) + _LENGTH
        signed = US.join((id, queue, key, flags, expires, options[end:])) + RS + body
        keys = (self._signer.key, *self._signer.fallback_keys)
        return any(
            constant_time_compare(options[len(_BEGIN) : end], self._signer.signature(signed, key)) for key in keys
        )
