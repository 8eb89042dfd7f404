"""The errors of the pipeline, in words for the person who runs a job."""

import re
from typing import Any

from py4j.protocol import Py4JJavaError

from django_delayq.core.errors import DelayqError

_LAST_OF_TRACEBACK = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Refused|Unavailable|Key|Configured): (.+)$", re.M)


class SparkError(DelayqError):
    """A read, a write or a job that could not be done, with the reason and the fix."""


def reason_of(error: Exception) -> str:
    """Return the reason of an error, without the tracebacks of Spark's processes that PySpark puts into its message."""
    told = _LAST_OF_TRACEBACK.findall(str(error))
    if told:
        return str(told[-1]).strip()
    if isinstance(error, Py4JJavaError):
        return _of_java(error.java_exception)
    return str(error).strip().partition("\n")[0]  # the message of a parse error goes on after an empty line


def _of_java(error: Any) -> str:
    """Return the first line of a Java error's message and that of its root cause.

    Return only the latter if the former contains it, because the error then only wraps the cause.
    """
    cause = error
    while cause.getCause() is not None:
        cause = cause.getCause()
    failed, why = (str(each.getMessage() or each.toString()).partition("\n")[0] for each in (error, cause))
    return why if why in failed else f"{failed}: {why}"
