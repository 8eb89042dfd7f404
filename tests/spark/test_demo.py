"""A month of real departures through the whole pipeline, to zero differences."""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

from pyarrow import parquet

from tests.docs.site import ROOT
from tests.spark.conftest import QUICK_START

DEPARTURES = 27_004
PATIENCE_S = 900


def test_a_month_of_departures_is_sent_run_archived_reported_and_reconciled(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DELAYQ"))}
    env["SPARK_DEMO_VAR"] = str(tmp_path / "demo")
    # Java spends more on compiling for speed than a month of rows takes: this halves the test.
    settings = [f"{name} {value}" for name, value in QUICK_START.items()]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(settings))
    env["SPARK_CONF_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "example_project.spark_demo"]
    faulthandler.cancel_dump_traceback_later()  # a busy machine may take longer than for any other test
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout
    for told in (
        f"Read {DEPARTURES}, sent {DEPARTURES}, there already 0, quarantined 0",
        f"Read {DEPARTURES}, sent 0, there already {DEPARTURES}, quarantined 0",
        f"Drained: {DEPARTURES} finished, 0 to retry",
        f"{DEPARTURES} of {DEPARTURES} have ended",
        f"finish: {DEPARTURES} rows in 1 chunks",
        f"{DEPARTURES} messages; figures in",
        "The admin shows ",
        "\n0 differences.\n",
    ):
        assert told in done.stdout
    lake = list((tmp_path / "demo/lake/finish").rglob("*.parquet"))
    pks = [pk for file in lake for pk in parquet.read_table(file, columns=["pk"], partitioning=None)["pk"].to_pylist()]
    assert len(pks) == len(set(pks)) == DEPARTURES
    assert "departure.announce" in (tmp_path / "demo/report.html").read_text()
    assert (tmp_path / "demo/forecast.svg").read_text().startswith("<svg")
