"""Make texts fit to be shown: without secrets and control characters, of bounded length.

Text from outside is made harmless in linear time. A password is recognized only by its place: in the login of an
address, or after a name such as `token=`. A site hides anything else with a function of its own: `OPTIONS["scrub"]`.
"""

import itertools
import re
import traceback
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType

# A match begins at a literal, and looking for its end stops at the next such literal. So matching takes linear time.
_QUOTED = r"""b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'"""
_LOGIN = re.compile(r"(://[^\s:@/?#\"'<>]*:)[^\s/?#\"'<>]*@")
_DATABASE = re.compile(  # up to the last @: a password that was not percent-encoded may have a slash
    r"(?i)((?:postgres(?:ql)?|postgis|psql|mysql|mariadb|mssql|oracle|mongodb|amqps?|rediss?|valkeys?)(?:\+\w{1,20})?"
    r"://[^\s:@/?#\"'<>]*:)(?:(?!://)[^\s?\"'<>])*@"
)
_TOKEN_LOGIN = re.compile(  # a login without a password, unless it reads like a user's name
    r"((?i:https?|rediss?|valkeys?)(?:\+\w{1,20})?://)(?![A-Za-z]?[a-z._-]{1,20}\d{0,4}@)[^\s:@/?#\"'<>]{8,}@"
)
_HEADER = re.compile(
    rf"(?i)(authorization[\"']?\s{{0,9}}[:=]\s{{0,9}})(?:{_QUOTED}|(?:[a-z]{{1,20}}[^\S\n]{{1,9}})?[^\s,;\"']+)"
)
_COOKIE = re.compile(r"(?i)(\bcookie:[^\S\n]{0,9})[\w.-]{1,99}=[^\n\"']*")
_BEARER = re.compile(r"(?i)(\bbearer[^\S\n]{1,9})[\w.~+/=-]+")
_DIGEST = re.compile(r"(?i)(\bresponse=)(?:\"[0-9a-f]{32,64}\"|[0-9a-f]{32,64}\b)")
_NAMES = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|sess(?:ion)?[_-]?id|sharedaccesssignature|[cx]srf"
    r"|(?:api|auth|account|access|private|secret|subscription|encryption|signing)[_-]?key"
    r"|(?<![a-z0-9_])sig(?:nature)?)"
)
_SHORT = r"(?<![a-z0-9])pass"  # not in _NAMES: tests "pass: 3"
_NAMED = re.compile(
    rf"(?i)((?:{_NAMES}|{_SHORT})(?:[\"']?[^\S\n]{{0,9}}=>[^\S\n]{{0,9}}(?=[^\s&,;])"
    rf"|(?:\s*=\s*|[\"']\s*:\s*)(?=b?[\"'])|=(?=[^\s&,;])))(?:{_QUOTED}|[^\s&,;]+)"
)
_SPACED = re.compile(  # x_key = value: a value of code has a dot or a bracket, or is short, except of the one for AWS
    rf"(?i)((?:{_NAMES}[^\S\n]{{1,9}}=[^\S\n]{{1,9}})(?=[a-z/+_-]{{0,99}}\d)(?=[\w/+-]{{16,}}+=*(?![\w(.\[]))"
    rf"|secret_access_key[^\S\n]{{1,9}}=[^\S\n]{{1,9}})[^\s&,;]+"
)
_COLON = re.compile(rf"(?i)((?:passw(?:or)?d|passphrase|pwd|secret):)(?:{_QUOTED}|[^\s:,;&\"'{{}}()\[\]<>/*][^\s&,;]*)")
_XML = re.compile(rf"(?i)(<(?:[a-z][\w.-]{{0,40}}[:._-])?(?:{_NAMES}|{_SHORT})>)[^<]+(?=</)")
_OPTION = re.compile(  # of a command line, also as a list; what follows is not a value in "--token is missing"
    rf"(?i)(--(?:[a-z]{{1,20}}-){{0,3}}(?:{_NAMES}|{_SHORT})(?:[^\S\n]{{1,9}}|[\"'],\s{{0,9}}(?=[\"'])))"
    r"(?!(?:is|are|was|has|must|needs?|requires?|takes?|can(?:no|')?t?|does|and|or|not|to|with|for|in)\b)"
    rf"(?:{_QUOTED}|[^\s\"'-][^\s\"']*)"
)
_JWT = re.compile(r"()(?<![\w-])eyJ[\w-]{4,}+(?:\.[\w-]*){2,4}")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)(?:(?!-----)[\w+/=\s\\:,-])+")
_NUMBER = re.compile(rf"(?i)({_NAMES}[\"']\s{{0,9}}:\s{{0,9}})-?\d[\w.+-]*")
_ESCAPED = re.compile(rf"(?i)({_NAMES}(\\+[\"'])\s{{0,9}}:\s{{0,9}}\2)(?:(?!\2)[^\n])*")  # JSON within a JSON text
_LINE = re.compile(  # of YAML, or a header: one word, or a quoted text, and nothing more of the line
    rf"(?i)({_NAMES}:[^\S\n]{{1,9}})(?:(?=b?[\"'][^\"']{{4}})(?:{_QUOTED})|[^\s,;\"'{{}}()\[\]]{{4,}}+(?=[\"']|[^\S\n]{{0,9}}(?:[,;)}}\]\n]|\Z)))"
)
_PAIR = re.compile(
    rf"(?i)([\[(]b?[\"'][\w.-]{{0,40}}(?:{_NAMES}|{_SHORT}|authorization|cookie)[\"'],\s{{0,9}})(?:{_QUOTED})(?=\s{{0,9}}[\])])"
)


def masked(text: str) -> str:
    """Return `text` with `***` in place of passwords.

    Passwords are: the one in `scheme://user:password@`, and of https and Redis a login that reads like a token; a JSON
    Web Token; a private key; the value of an `Authorization` or `Cookie` header, the `response=` of a digest, and the
    word after `Bearer`; and the values of names that end as `_NAMES` says, as in `password=...`, `"token": "..."`,
    `("token", "...")`, `<token>...</token>`, `--token ...`, and `X-Api-Key: ...` at the end of a line. The names are
    the ones that Sentry and Django hide, except key, auth and session, which are rarely secrets in running text.
    """
    for found, instead in _MASKED:
        text = found.sub(instead, text)
    return text


_MASKED = (
    *((found, r"\1***@") for found in (_DATABASE, _LOGIN, _TOKEN_LOGIN)),
    *((found, r"\1***") for found in (_PRIVATE_KEY, _PAIR, _HEADER, _COOKIE, _BEARER, _DIGEST, _JWT)),
    *((found, r"\1***") for found in (_OPTION, _NAMED, _NUMBER, _ESCAPED, _LINE, _SPACED, _COLON, _XML)),
)


Scrub = Callable[[str], str]
"""A site's function that removes from a text what must not be kept, such as the numbers of cards."""

_find_scrubs: Callable[[], Sequence[Scrub]] = tuple


def scrub_with(find: Callable[[], Sequence[Scrub]]) -> None:
    """Have `clean` call the functions that `find` returns, one after another."""
    global _find_scrubs
    _find_scrubs = find


def clean(text: str) -> str:
    """Return `text` without passwords, changed by the site's `scrub` functions. Raises nothing.

    If one of these functions fails, return a note instead of the text, which may hold what the function should remove.
    """
    text = masked(text)
    try:
        for scrub in _find_scrubs():
            text = str.__str__(scrub(text))
    except BaseException as error:  # noqa: BLE001 - it is the site's code, and must not stop a worker
        return f"(left out, because OPTIONS['scrub'] raised {type(error).__name__})"
    return text


def has_scrubs() -> bool:
    """Return whether the site has `scrub` functions, or names one that can't be imported."""
    try:
        return bool(_find_scrubs())
    except BaseException:  # noqa: BLE001 - as above
        return True


def hidden(address: str, harmless: Collection[str]) -> str:
    """Return an address with `***` in place of its password, and of the value of each option that is not in `harmless`.

    It also works on an address that is badly written; it may hide the whole login of such an address.
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

    An unknown option may be a secret under a misspelled name, or the rest of a secret that contains an `&`.
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

    Long parts are shortened first. If that is not enough, the beginning is cut off, because it is farthest from the
    failure. Raises nothing.
    """
    try:
        keep_first_lines(exception)
        parts = traceback.format_exception(None, exception, frames)
    except BaseException:  # noqa: BLE001 - an exception may be anything, its notes and its cause too
        return f"{type(exception).__qualname__} (its traceback can't be shown)\n"
    text = "".join(_bounded(parts))
    return text if len(text) <= MAX_TRACEBACK else f"{_CUT}\n{text[len(_CUT) + 1 - MAX_TRACEBACK :]}"


def keep_first_lines(exception: BaseException | None) -> None:
    """Cut the texts of database errors, among this exception and those that led to it, to their first lines.

    The later lines quote a row (DETAIL), a statement or its parameters. Values that the first line quotes are masked.
    The exceptions themselves are changed, so that nothing that formats them later shows more.
    """
    left, met = [exception], set[int]()
    while left:
        one = left.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        if _is_of_a_database(one):
            one.args = tuple(_first_line(arg) if isinstance(arg, str) else arg for arg in one.args)
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _is_of_a_database(exception: BaseException) -> bool:
    """Return whether an exception is a database error, of Django or of a driver: PEP 249 fixes the classes' names."""
    return any(kind.__name__ in ("DatabaseError", "InterfaceError") for kind in type(exception).__mro__)


def _first_line(text: str) -> str:
    return _VALUE.sub(lambda found: f"{found[1] or found[2]}***", text.strip().partition("\n")[0])


# First lines that quote a value, of MySQL and of PostgreSQL: Duplicate entry 'a' for key 'b'; invalid input syntax for
# type integer: "a"; value "a" is out of range for type integer; time zone "a" not recognized.
_VALUE = re.compile(
    r"((?:Duplicate entry|(?:Truncated i|I)ncorrect [\w ]{1,30}:|invalid input (?:syntax|value) for [\w ]{1,80}:"
    r"|date/time field value out of range:|\bvalue|malformed \w{1,20} literal:|invalid cidr value:|invalid network"
    r"|invalid hexadecimal digit:|\btime zone|\bnear|invalid value for parameter \"\w{1,40}\":) )"
    r"(?:'.*'(?= for (?:key|column)| at line)|'.*'$|\".*\"(?=$| is out of range| not recognized|: syntax error))"
    r"|(invalid regular expression: ).*"
)


def _bounded(parts: list[str]) -> Iterator[str]:
    for are_frames, group in itertools.groupby(parts, _is_frame):
        # A line of source may hold a password, and be long, so each frame is a text of its own.
        for text in group if are_frames else ["".join(group)]:
            yield _shortened(clean(text).rstrip("\n") + "\n")


def _is_frame(part: str) -> bool:
    return part.lstrip(" |").startswith(_FRAME)


def _shortened(text: str) -> str:
    """Return a text; if it is longer than `MAX_TEXT`, only its beginning and end.

    The beginning has the type of an exception; the end has the line that introduces the next exception.
    """
    if len(text) <= MAX_TEXT:
        return text
    end = MAX_TEXT // 3
    return f"{text[: MAX_TEXT - end - len(_CUT)]}{_CUT}{text[-end:]}"
