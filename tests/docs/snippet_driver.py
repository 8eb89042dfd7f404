"""Runs in a process of the site: Python blocks as JSON on stdin, one a line; what is wrong with each on stdout."""

import doctest
import io
import json
import os
import sys
import traceback
from typing import Any

import django


def main() -> None:
    sys.path.insert(0, os.getcwd())
    os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
    django.setup()
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        block = json.loads(line)
        wrong = _run(block["source"], block["line"], names)
        print("\x1e" + json.dumps(wrong), flush=True)  # noqa: T201


def _run(source: str, line: int, names: dict[str, Any]) -> str | None:
    if source.startswith(">>>"):
        return _run_doctest(source, line, names)
    try:
        exec(compile("\n" * line + source, "page", "exec"), names)  # noqa: S102
    except BaseException:  # noqa: BLE001 - told to the test
        return traceback.format_exc()
    return None


def _run_doctest(source: str, line: int, names: dict[str, Any]) -> str | None:
    test = doctest.DocTestParser().get_doctest(source, {}, "page", "page", line)
    test.globs = names  # shared, where a copy is the rule
    report = io.StringIO()
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    runner = doctest.DocTestRunner(verbose=False, optionflags=options)
    runner.run(test, out=report.write, clear_globs=False)
    return report.getvalue() or None


if __name__ == "__main__":
    main()
