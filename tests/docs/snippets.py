"""Python blocks that are no file: run in order in one process of the site, which shares their names.

A block in a file that is saved later begins a new process, which sees the file. Blocks with ">>>" are doctests.
"""

import json

from tests.docs.site import Site

DRIVER = "python -m tests.docs.snippet_driver"


def run(site: Site, block: str, line: int) -> str | None:
    """Run one block. Gives the traceback, or what a doctest got instead."""
    if site.snippets is None:
        site.snippets = site.start(DRIVER)
    site.snippets.write(json.dumps({"source": block, "line": line}))
    output = []
    while (written := site.snippets.line()) is not None:
        if written.startswith("\x1e"):
            return json.loads(written[1:])  # type: ignore[no-any-return]
        output.append(written)
    return f"the process of the snippets ended:\n{''.join(output)}"
