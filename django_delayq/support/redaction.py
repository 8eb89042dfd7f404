"""Make text from outside harmless: hide passwords, and escape what moves a cursor. Pure functions, in linear time.

Only a password that is marked as one can be known: the login of an address, and a value with a telling name.
"""

import re
import unicodedata
from collections.abc import Collection

# Each begins at a literal, and a try reads no further such literal: so no text is read over and over.
_LOGIN = re.compile(r"(://[^\s:@/?#\"'<>]*:)[^\s/?#\"'<>]*@")
_NAMED = re.compile(
    r"(?i)((?:passw(?:or)?d|secret|token|api[_-]?key)"
    r"(?:(?:\s*=\s*|[\"']\s*:\s*)(?=b?[\"'])|=(?=[^\s&,;])))"
    r"(?:b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'|[^\s&,;]+)"
)


def masked(text: str) -> str:
    """Return `text` with `***` for the passwords in it.

    These are the password of a `scheme://user:password@`, and the values of names that end in password, passwd, secret,
    token or api_key, as in `password=...` and `"token": "..."`.
    """
    return _NAMED.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def hidden(address: str, harmless: Collection[str]) -> str:
    """Return an address with `***` for its login, and for the value of each option that is not in `harmless`.

    It also works on an address that is badly written.
    """
    # Up to the last @: a password that was not percent-encoded may hold another, or a slash.
    shown = re.sub(r"^(?>((?:[a-z][\w+.-]*://)?))(?!/)(.*)@", _hide_login, address, flags=re.DOTALL | re.IGNORECASE)
    place, mark, query = shown.partition("?")
    return place + mark + "&".join(_hide_value(option, harmless) for option in query.split("&"))


def _hide_login(found: re.Match[str]) -> str:
    scheme, login = found.groups()
    name = re.match(r"[\w.%-]*:", login)
    return f"{scheme}{name[0] if name else ''}***@"


def _hide_value(option: str, harmless: Collection[str]) -> str:
    """Return an option with its value hidden, unless its name is known to be harmless.

    Anything else may be a secret under a misspelled name, or the rest of one.
    """
    name, equals, _ = option.partition("=")
    if not option or (equals and name in harmless):
        return option
    return f"{name}=***" if equals else "***"


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder or hide text, or that no terminal can show."""


def one_line(text: str) -> str:
    """Return `text` on one line: control characters, and those that reorder or hide text, become escapes."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def lines(text: str) -> str:
    """Make text harmless as `one_line` does, but keep its line breaks."""
    return "\n".join(map(one_line, text.split("\n")))


def _harmless(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
