"""Translate faults and error replies of Redis into our errors: try again, or mend something first."""

import re
from collections.abc import Mapping

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, ForeignMark, PartlyUnavailable
from django_delayq.support.translatable import Text, text as _

# Redis up to 6.2 wraps the error of a script's command, so the code may stand anywhere in the text.
# "non local key" comes from a script whose slot moves to another node.
_PASSES = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|TRYAGAIN|CLUSTERDOWN|BUSY|MISCONF|NOREPLICAS|UNBLOCKED|non local key"
    r"|cannot be used with replica instances)\b"
)
_READ_ONLY = "can't write against a read only"
_FULL = re.compile(r"\bOOM\b|used memory > 'maxmemory'")
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_OF_A_CLUSTER: Mapping[type[ResponseError], str] = {
    AskError: "a slot is being moved to another node (ASK)",
    TryAgainError: "a slot is being moved to another node (TRYAGAIN)",
    ClusterDownError: "the cluster is down (CLUSTERDOWN)",
}
_FORBIDDEN = re.compile(r"no permissions|user executing the script can't", re.IGNORECASE)
# Redis adds the script's hash and lines to the error of a script's command, and Valkey 9 only the lines. They are left
# out, because they don't help anyone to mend the cause.
_OF_A_SCRIPT = re.compile(
    r"Error running script \(call to f_\w+\): |@?user_script: ?\d+: |\bERR | script: (?:\w+, )?on @user_script:\d+"
)
_FOREIGN = re.compile("WRONGTYPE|wrong kind of value")
_HINTS = (
    (
        _FOREIGN,
        "someone else writes under our prefix. Remove or rename it (RENAME), or give this site a prefix of its own "
        "(OPTIONS['prefix'])",
    ),
    (
        re.compile(r"unknown command\W+WAITAOF"),
        'OPTIONS["confirm"]="fsync" needs Redis 7.2 or newer, or Valkey; use one, or leave the option out',
    ),
    (
        re.compile(r"WAITAOF .*appendonly is disabled"),
        'OPTIONS["confirm"]="fsync" needs the append-only file; give Redis "appendonly yes", or leave the option out',
    ),
    (re.compile(r"permissions to run the 'waitaof'"), 'OPTIONS["confirm"]="fsync" needs +waitaof for this user'),
    (re.compile(r"permissions to run the 'wait'"), 'OPTIONS["confirm"]="replica" needs +wait for this user'),
    (
        re.compile(r"WRONGPASS|NOAUTH|Authentication required|username-password|AUTH"),
        "check user and password in LOCATION",
    ),
    (
        _FORBIDDEN,
        "use the user that docs/how-to/deploy.md lists for this, such as the worker's, or give this one what it lists",
    ),
    (re.compile("cluster support disabled"), "write redis://HOST:PORT/DB in LOCATION"),
)


class TransientError(BrokerUnavailable):
    """An error after which the same call may succeed a moment later."""


def broker_error(error: Exception, shown: str, asked: str = "") -> Exception:
    """Return our error for an error of redis-py. An error of ours is returned unchanged.

    `shown` is the address of the server without its password. `asked` is the name of the call to which the server
    replied with the error, if there is one.
    """
    text = str(error)
    if isinstance(error, BrokerUnavailable | BrokerRefused):
        return error
    at = _("%(server)s at %(address)s", server="Redis", address=shown)
    if isinstance(error, MovedError):
        return BrokerRefused(
            _("%(server)s is one node of a cluster: name it with redis+cluster:// in LOCATION.", server=at)
        )
    for kind, what in _OF_A_CLUSTER.items():  # redis-py removes their codes from the text
        if isinstance(error, kind):
            return TransientError(_("%(server)s can't do that now: %(said)s", server=at, said=f"{what}. {text}"))
    if isinstance(error, BusyLoadingError) or _PASSES.search(text) or _READ_ONLY in text:
        return TransientError(_("%(server)s can't do that now: %(said)s", server=at, said=text))
    if isinstance(error, ResponseError) and _FULL.search(text):
        # The same text for all scripts, so that it is logged once.
        said = _OF_A_SCRIPT.sub("", text).strip("-. \r\n").removeprefix("OOM ")
        return PartlyUnavailable(
            _("%(server)s has no memory left (maxmemory): give it more. It said: %(said)s", server=at, said=f"{said}.")
        )
    if isinstance(error, ResponseError | AuthenticationError):
        refused = ForeignMark if _FOREIGN.search(text) else BrokerRefused
        return refused(_refused(at, asked, _with_hint(text)))
    if _UNTRUSTED in text:
        return BrokerRefused(
            _(
                "%(server)s is not trusted: %(said)s; give the file of its CA as ssl_ca_certs in LOCATION, "
                "and the host as its certificate names it.",
                server=at,
                said=text.rstrip("."),
            )
        )
    if isinstance(error, ConnectionError | TimeoutError | OSError):
        return TransientError(_("%(server)s is away: %(said)s", server=at, said=text))
    return BrokerRefused(_("%(server)s does not answer as Redis does: %(said)s", server=at, said=text))


def _refused(at: Text, asked: str, said: str) -> Text:
    if asked:
        return _("%(server)s refused %(asked)s: %(said)s.", server=at, asked=asked, said=said)
    return _("%(server)s refused: %(said)s.", server=at, said=said)


def _with_hint(text: str) -> str:
    is_known = _FORBIDDEN.search(text) or _FOREIGN.search(text)
    said = (_OF_A_SCRIPT.sub("", text) if is_known else text).rstrip(".")
    return said + next((f"; {hint}" for pattern, hint in _HINTS if pattern.search(text)), "")
