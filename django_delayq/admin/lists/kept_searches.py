"""Keep searches in payloads in the session, so that no address, server log or browser history has their values.

The search box is sent by POST. A search in payloads is kept under a random token. The addresses of the list have the
token in its place: those of its pages and filters, and of an action on all matching rows.
"""

import re
import secrets

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext as _

from django_delayq.admin.lists.search import asks_for_data, with_value
from django_delayq.admin.log import hashed
from django_delayq.admin.message.payload import may_view

PARAMETER = "q"
"""The parameter of Django's lists for a search."""

MOST = 20
"""How many searches a session keeps; the oldest go first."""

LONGEST = 6_000
"""The most characters of a search. Each page reads the whole session."""

_IN_SESSION = "delayq_searches"
_TOKEN = re.compile("data:[0-9a-f]{32}")
_HASH = re.compile("#[0-9a-f]{16}")


def is_sent(request: HttpRequest) -> bool:
    """Return whether the request comes from the search box. Every other POST to a list has an action."""
    return request.method == "POST" and PARAMETER in request.POST and "action" not in request.POST


def redirect_to(request: HttpRequest) -> HttpResponseRedirect:
    """Redirect from the search box to the list, filtered as it was.

    A search in payloads is not kept for a user who may not see payloads. The list tells that user.
    """
    asked = QueryDict(mutable=True)
    for name, values in request.POST.lists():
        if name not in ("csrfmiddlewaretoken", PARAMETER):
            asked.setlist(name, values)
    text = request.POST[PARAMETER].strip()
    if len(text) > LONGEST:
        messages.warning(
            request, _("This was not searched for: it is longer than %(most)d characters.") % {"most": LONGEST}
        )
    elif asks_for_data(text):
        asked[PARAMETER] = token = f"data:{secrets.token_hex(16)}"
        if may_view(request):
            _keep(request, token, text)
    elif text:
        asked[PARAMETER] = text
    return HttpResponseRedirect(f"{request.path}?{asked.urlencode()}")


def search_of(request: HttpRequest) -> str:
    """Return the search in the address. A token is replaced by the text that this session has kept under it."""
    return meant(request, request.GET.get(PARAMETER, ""))


def meant(request: HttpRequest, asked: str) -> str:
    """Return the search that `asked` stands for. A token stays a token if the session has no such search."""
    asked = asked.strip()
    if _TOKEN.fullmatch(asked) is None:
        return asked
    kept: dict[str, str] = request.session.get(_IN_SESSION, {})
    return kept.get(asked, asked)


def for_log(text: str) -> str:
    """Return a search with the payload value hashed. A value that is already a hash stays."""
    return with_value(text, lambda value: value if _HASH.fullmatch(value) else hashed(value))


def is_over(text: str) -> bool:
    """Return whether `text`, which `meant` has returned, is still a token: the session has no search under it."""
    return _TOKEN.fullmatch(text) is not None


def is_in_address(request: HttpRequest) -> bool:
    """Return whether somebody has written a search in payloads into the address itself."""
    return asks_for_data(request.GET.get(PARAMETER, "").strip())


def _keep(request: HttpRequest, token: str, text: str) -> None:
    kept: dict[str, str] = request.session.get(_IN_SESSION, {})
    request.session[_IN_SESSION] = dict([*kept.items(), (token, text)][-MOST:])
