"""Passwords that stand in a text, made unreadable. Pure functions, in linear time.

Only what says that it is secret can be known: an address with a login, and a value with a telling name.
"""

import re

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
