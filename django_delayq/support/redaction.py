"""Text from outside, made harmless: passwords are hidden, and nothing moves a cursor. Pure functions, in linear time.

Of passwords only what says that it is secret can be known: an address with a login, and a value with a telling name.
"""

import re
import unicodedata
from collections.abc import Collection

# Each begins at a literal, and what a try reads holds no other such beginning: nothing is read over and over.
_LOGIN = re.compile(r"(://[^\s:@/?#\"'<>]*:)[^\s/?#\"'<>]*@")
_NAMED = re.compile(
    r"(?i)((?:passw(?:or)?d|secret|token|api[_-]?key)"
    r"(?:(?:\s*=\s*|[\"']\s*:\s*)(?=b?[\"'])|=(?=[^\s&,;])))"
    r"(?:b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'|[^\s&,;]+)"
)


def masked(text: str) -> str:
    """`text` with `***` for the password of a `scheme://user:password@`, and for the values of names that end in
    password, passwd, secret, token or api_key, as in `password=...` and `"token": "..."`.
    """
    return _NAMED.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def hidden(address: str, harmless: Collection[str]) -> str:
    """An address with its secrets as `***`, also when it is badly written: its login, and all options but these."""
    # Up to the last @: a password that was not percent-encoded may hold another, or a slash.
    shown = re.sub(r"^(?>((?:[a-z][\w+.-]*://)?))(?!/)(.*)@", _hide_login, address, flags=re.DOTALL | re.IGNORECASE)
    place, mark, query = shown.partition("?")
    return place + mark + "&".join(_hide_value(option, harmless) for option in query.split("&"))


def _hide_login(found: re.Match[str]) -> str:
    scheme, login = found.groups()
    name = re.match(r"[\w.%-]*:", login)
    return f"{scheme}{name[0] if name else ''}***@"


def _hide_value(option: str, harmless: Collection[str]) -> str:
    """What is not known to be harmless may be a secret under a misspelled name, or the rest of one."""
    name, equals, _ = option.partition("=")
    if not option or (equals and name in harmless):
        return option
    return f"{name}=***" if equals else "***"


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder or hide text, or that no terminal can show."""


def one_line(text: str) -> str:
    """`text` on one line: control characters, and what reorders or hides text, as escapes."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def lines(text: str) -> str:
    """As `one_line`, but lines stay lines."""
    return "\n".join(map(one_line, text.split("\n")))


def _harmless(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
