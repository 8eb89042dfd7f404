"""The workflows on GitHub do what the pages say of them."""

import re
from pathlib import Path

import yaml

import noxfile

ROOT = Path(__file__).parent.parent
CI = ".github/workflows/ci.yml"


def test_every_combination_that_nox_names_is_run_before_a_merge() -> None:
    jobs = yaml.safe_load((ROOT / CI).read_text())["jobs"]
    of_workflow = {f"{each['python']}-{each['django']}" for each in jobs["versions"]["strategy"]["matrix"]["include"]}
    of_script = set(re.findall(r'"(?:tests|few)\((.+?)\)"', (ROOT / ".ci/run").read_text()))
    assert of_workflow | of_script | {"3.11-5.2"} == set(noxfile.COMBINATIONS), (
        "make test runs the whole suite on 3.11-5.2"
    )


def test_nothing_is_published_that_has_not_passed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["test"]["uses"] == f"./{CI}"
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("test", "build")
    assert "workflow_call:" in (ROOT / CI).read_text()
