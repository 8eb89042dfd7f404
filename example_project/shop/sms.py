"""A text-message gateway for the example, which sends nothing and fails like real ones."""

import logging
import time

from django.conf import settings

logger = logging.getLogger(__name__)


class Busy(Exception):
    """The gateway can't take the text now; it will later."""


class NoSuchNumber(Exception):
    """The number does not exist: trying again is no use."""


def send(phone: str, text: str, *, attempt: int = 1) -> None:
    """Send `text`. A number ending in 9 is busy at the first attempt, one ending in 0000 does not exist."""
    time.sleep(settings.SHOP_GATEWAY_TAKES.total_seconds())
    if phone.endswith("0000"):
        raise NoSuchNumber(f"{phone} does not exist")
    if phone.endswith("9") and attempt == 1:
        raise Busy(f"the gateway has no free line to {phone}")
    logger.info("Text to %s: %s", phone, text)
