"""Make texts fit to be shown: without passwords and control characters, of bounded length. Pure functions.

Text from outside is made harmless in linear time. A password is recognized only by its place: in the login of an
address, or after a name such as `token=`.
"""

import itertools
import re
import traceback
import unicodedata
from collections.abc import Collection, Iterator
from types import TracebackType

# A match begins at a literal, and looking for its end stops at the next such literal. So matching takes linear time.
_LOGIN = re.compile(r"(://[^\s:@/?#\"'<>]*:)[^\s/?#\"'<>]*@")
_NAMED = re.compile(
    r"(?i)((?:passw(?:or)?d|secret|token|api[_-]?key)"
    r"(?:(?:\s*=\s*|[\"']\s*:\s*)(?=b?[\"'])|=(?=[^\s&,;])))"
    r"(?:b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'|[^\s&,;]+)"
)


def masked(text: str) -> str:
    """Return `text` with `***` in place of passwords.

    Passwords are the one in `scheme://user:password@`, and the values of names that end in password, passwd, secret,
    token or api_key, as in `password=...` and `"token": "..."`.
    """
    return _NAMED.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def hidden(address: str, harmless: Collection[str]) -> str:
    """Return an address with `***` in place of its password, and of the value of each option that is not in `harmless`.

    It also works on an address that is badly written: then all of the login may be hidden.
    """
    # Up to the last @, because a password that was not percent-encoded may contain an @ or a slash.
    shown = re.sub(r"^(?>((?:[a-z][\w+.-]*://)?))(?!/)(.*)@", _hide_login, address, flags=re.DOTALL | re.IGNORECASE)
    place, mark, query = shown.partition("?")
    return place + mark + "&".join(_hide_value(option, harmless) for option in query.split("&"))


def _hide_login(found: re.Match[str]) -> str:
    scheme, login = found.groups()
    name = re.match(r"[\w.%-]*:", login)
    return f"{scheme}{name[0] if name else ''}***@"


def _hide_value(option: str, harmless: Collection[str]) -> str:
    """Return an option with its value hidden, unless its name is known to be harmless.

    Any other option may be a secret under a misspelled name, or the rest of a secret that contains an `&`.
    """
    name, equals, _ = option.partition("=")
    if not option or (equals and name in harmless):
        return option
    return f"{name}=***" if equals else "***"


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder or hide text, or that no terminal can show."""


def one_line(text: str) -> str:
    """Return `text` on one line, with escapes for control characters and for characters that reorder or hide text."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def lines(text: str) -> str:
    """Return `text` with each of its lines made harmless by `one_line`."""
    return "\n".join(map(one_line, text.split("\n")))


def _harmless(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")


MAX_TRACEBACK = 16_000
MAX_TEXT = 3_000
"""The most characters of one part of a traceback: a frame, or all the text between two runs of frames."""
_CUT = "… (shortened) …"
_FRAME = 'File "'


def text_of(exception: BaseException | None, frames: TracebackType | None) -> str:
    """Return the traceback, without the values of variables, in at most `MAX_TRACEBACK` characters.

    Long parts are shortened first; then the beginning is cut off, which is farthest from the failure. Raises nothing.
    """
    try:
        parts = traceback.format_exception(None, exception, frames)
    except BaseException:  # noqa: BLE001 - an exception may be anything, its notes and its cause too
        return f"{type(exception).__qualname__} (its traceback can't be shown)\n"
    text = "".join(_bounded(parts))
    return text if len(text) <= MAX_TRACEBACK else f"{_CUT}\n{text[len(_CUT) + 1 - MAX_TRACEBACK :]}"


def _bounded(parts: list[str]) -> Iterator[str]:
    for are_frames, group in itertools.groupby(parts, _is_frame):
        if are_frames:
            yield from (_shortened(masked(part)) for part in group)  # a line of source may hold a password, and be long
        else:
            yield _shortened(masked("".join(group)))


def _is_frame(part: str) -> bool:
    return part.lstrip(" |").startswith(_FRAME)


def _shortened(text: str) -> str:
    """Return at most the beginning and the end of a text.

    The beginning has the type of an exception; the end has the line that introduces the next exception.
    """
    if len(text) <= MAX_TEXT:
        return text
    end = MAX_TEXT // 3
    return f"{text[: MAX_TEXT - end - len(_CUT)]}{_CUT}{text[-end:]}"
