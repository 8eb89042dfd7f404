"""The code blocks of a page, each with what running it means."""

import configparser
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

from tests.docs import console, containers, servers_conf, snippets
from tests.docs.command_lines import command_lines, refused
from tests.docs.site import Site

Evaluate = Callable[[Site, str, int], str | None]
"""Runs a block that begins at a line. Gives what is wrong with it."""


def _python(site: Site, block: str, line: int) -> str | None:
    return None if site.save(block) else snippets.run(site, block, line)


def _ini(site: Site, block: str, line: int) -> str | None:
    site.save(block)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(block)
    values = (value for section in parser.sections() for value in parser[section].values())
    return next(filter(None, map(refused, values)), None)


def _yaml(site: Site, block: str, line: int) -> str | None:
    return next(filter(None, map(refused, command_lines(yaml.safe_load(block)))), None)


LANGUAGES: Mapping[str, Evaluate | None] = {
    "python": _python,  # saved, when its first line names a file; run otherwise
    "console": console.run,  # commands, each with what it writes
    "ini": _ini,
    "dockerfile": containers.check,
    "yaml": _yaml,
    "conf": servers_conf.check,  # redis.conf: a server is started with it
    "text": None,  # no code: a drawing, or what a file or a log holds
}


def run_page(page: Path, site: Site) -> None:
    """Run every block of a page in order. Raises what is wrong with the first that fails."""
    document = Document.parse(str(page), *(CodeBlockParser(name, _evaluator(site, name)) for name in LANGUAGES))
    fences = sum(line.lstrip().startswith("```") for line in document.text.splitlines())
    examples = list(document)
    assert fences == 2 * len(examples), f"{page} has a block of no known language; it takes {', '.join(LANGUAGES)}"
    for example in examples:
        example.evaluate()


def _evaluator(site: Site, name: str) -> Callable[[Example], str | None]:
    evaluate = LANGUAGES[name]
    if evaluate is None:
        return lambda example: None
    return lambda example: evaluate(site, str(example.parsed), example.line)
