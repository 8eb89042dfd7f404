"""Build a Spark session that the data source runs on."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from django_delayq.spark.errors import SparkError
from django_delayq.spark.java import java_home

_DEFAULTS = {
    "spark.sql.python.filterPushdown.enabled": "true",  # without it, a source that can push filters down is refused
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",  # a laptop that changes its network keeps its session
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",  # the jobs show their own
    "spark.ui.enabled": "false",
}


def build_session(
    app_name: str = "django-delayq", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, or a new one.

    Under `spark-submit` it is the cluster's. Otherwise it runs on `master` (default: all cores of this machine), with
    Java from JAVA_HOME or from the extra `spark`. Its Python processes use this interpreter, unless PYSPARK_PYTHON
    names another one, and can import what this process can. `config` overrides our defaults. Raises `SparkError` if
    there is no Java, or Spark does not start.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(app_name)
    if not submitted:
        builder = builder.master(master or "local[*]")
    local = not submitted and (master or "local").startswith("local")
    for name, value in {**_DEFAULTS, **(_LOCAL_DEFAULTS if local else {}), **(config or {})}.items():
        builder = builder.config(name, value)
    with _environment(submitted):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise SparkError(f"Spark did not start, see above: {str(error).partition(chr(10))[0]}") from error


def check_zone(spark: SparkSession) -> None:
    """Raise `SparkError` unless the session's time zone is UTC: in another one, days begin at other times."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    if zone not in ("UTC", "Etc/UTC"):
        raise SparkError(f"The session's time zone is {zone!r}; set spark.sql.session.timeZone to 'UTC'.")


@contextmanager
def _environment(submitted: bool) -> Iterator[None]:
    """Set the environment variables that Spark reads when it starts, for the block.

    Sets none if the job was `submitted`, or a session is active.
    """
    if submitted or SparkSession.getActiveSession() is not None:
        yield
        return
    before = dict(os.environ)
    with java_home() as home:
        if home:
            os.environ["JAVA_HOME"] = home
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        root = str(Path(__file__).parent.parent.parent)  # where pyspark_delayq is looked for
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), root]))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
