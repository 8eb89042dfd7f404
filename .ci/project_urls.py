"""Write the addresses of the repository that a release is made from into pyproject.toml and into the README's links.

The release workflow runs it before the build. So a package names the repository that it was really built from, a fork's
packages too, and the README's pages and pictures are found where the package index shows it. The repository is
GITHUB_SERVER_URL and GITHUB_REPOSITORY, which GitHub sets.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYPROJECT, README = ROOT / "pyproject.toml", ROOT / "README.md"
PAGES = {
    "Source": "",
    "Documentation": "/tree/{tag}/docs",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/security/policy",
}
BEFORE = "[project.optional-dependencies]"


def urls(server: str, repository: str, tag: str) -> str:
    """Return the table [project.urls]. Raises `ValueError` for an address that is none."""
    if not re.fullmatch(r"https://[\w.-]+", server):
        raise ValueError(
            f"GITHUB_SERVER_URL={server!r} is no address of a server; give one such as https://github.com."
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"GITHUB_REPOSITORY={repository!r} is no repository; give OWNER/NAME.")
    if not re.fullmatch(r"[\w.+-]+", tag):
        raise ValueError(f"GITHUB_REF_NAME={tag!r} is no tag; give one such as v0.1.0.")
    lines = [f'{name} = "{server}/{repository}{page.format(tag=tag)}"' for name, page in PAGES.items()]
    return "\n".join(["[project.urls]", *lines, "", ""])


def with_whole_links(text: str, home: str, tag: str) -> str:
    """Return Markdown whose links to files of the repository are whole addresses: of a page, or of a picture itself."""

    def whole(found: re.Match[str]) -> str:
        view = "raw" if found[1].startswith("!") else "blob"
        return f"{found[1]}({home}/{view}/{tag}/{found[2]})"

    return re.sub(r"(!?\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)", whole, text)


def main() -> int:
    """Write the addresses, and return the exit code."""
    text = PYPROJECT.read_text()
    if "[project.urls]" in text:
        sys.stderr.write("pyproject.toml has [project.urls] already; run this once, in a fresh checkout.\n")
        return 1
    server, repository, tag = (
        os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "REF_NAME")
    )
    try:
        table = urls(server, repository, tag)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    PYPROJECT.write_text(text.replace(BEFORE, table + BEFORE, 1))
    README.write_text(with_whole_links(README.read_text(), f"{server}/{repository}", tag))
    return 0


if __name__ == "__main__":
    sys.exit(main())
