"""Protect pages with a token, because monitoring has no session."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare

View = Callable[..., Any]


def token_required(*tokens: str) -> Callable[[View], View]:
    """Return a decorator that lets a view, sync or async, answer only requests that have one of these tokens.

    A request has its token in the header `Authorization: Bearer TOKEN`. All others get the status 401 and learn
    nothing. If you give several tokens, you can replace one after another. Raises `ImproperlyConfigured` if there is
    no token, or an empty one, such as one from an environment that lacks it.
    """
    if not tokens or not all(tokens):
        raise ImproperlyConfigured(
            "token_required() got an empty token, which everybody knows; give it a long random one."
        )

    def decorate(view: View) -> View:
        if iscoroutinefunction(view):

            @wraps(view)
            async def guarded_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                return await view(request, *args, **kwargs) if _knows(request, tokens) else _refusal()

            return guarded_async

        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return view(request, *args, **kwargs) if _knows(request, tokens) else _refusal()

        return guarded

    return decorate


def _knows(request: HttpRequest, tokens: tuple[str, ...]) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    known = [constant_time_compare(given.strip(), token) for token in tokens]  # each, so that the time tells nothing
    return scheme.lower() == "bearer" and any(known)


def _refusal() -> HttpResponse:
    return HttpResponse(
        "A token is needed.", status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"}
    )
