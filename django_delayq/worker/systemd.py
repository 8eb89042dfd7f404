"""Tell systemd (`Type=notify`) of a worker's state: one datagram for each, as in sd_notify(3)."""

import os
import socket
from collections.abc import Callable

from django_delayq.support.logging import logger

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

SEND_S = 1.0


def teller() -> Callable[[str], None]:
    """Return a function that tells whoever started this process, or does nothing unless `NOTIFY_SOCKET` names a socket.

    The name is taken out of the environment: the processes that handlers and children start are not the service.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return lambda state: None
    if address.startswith("@"):  # a name that is in no directory
        address = "\0" + address[1:]

    failing = False

    def tell(state: str) -> None:
        nonlocal failing
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(SEND_S)
                line.sendto(state.encode(), address)
        except OSError as error:
            if not failing:
                logger.warning("systemd can't be told %s: %s.", state, error.strerror or error)
            failing = True
        else:
            failing = False

    return tell
