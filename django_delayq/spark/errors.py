"""What the pipeline raises, in words for who runs a job."""

import re

from django_delayq.errors import DelayqError

_LAST_OF_TRACEBACK = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Refused|Unavailable|Key|Configured): (.+)$", re.M)


class SparkError(DelayqError):
    """A read, a write or a job that could not be done, with the reason and the fix."""


def reason_of(error: Exception) -> str:
    """What went wrong, without the tracebacks of Spark's processes that PySpark puts into its message."""
    told = _LAST_OF_TRACEBACK.findall(str(error))
    return (told[-1] if told else str(error).partition("\n")[0]).strip()
