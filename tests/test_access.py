"""Pages for monitoring, which only those see who know a token."""

import asyncio
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from health_check.views import HealthCheckView

from django_delayq.access import token_required


def page(request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(f"figures of {name}")


def asked(view: Any, header: str | None, *arguments: str) -> tuple[int, str]:
    headers = {} if header is None else {"Authorization": header}
    answer = view(RequestFactory().get("/", headers=headers), *arguments)
    response = asyncio.run(answer) if asyncio.iscoroutine(answer) else answer
    return response.status_code, response.headers.get("WWW-Authenticate", "")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic one", "one", "Bearer größe"])
def test_nobody_sees_a_page_without_its_token(header: str | None) -> None:
    assert asked(token_required("one", "two")(page), header, "all") == (401, "Bearer")
    health = token_required("one")(HealthCheckView.as_view(checks=[]))
    assert asked(health, header) == (401, "Bearer")


def test_each_of_the_tokens_shows_it() -> None:
    view = token_required("one", "two")(page)
    assert [asked(view, header, "all")[0] for header in ("Bearer one", "bearer two")] == [200, 200]
    assert asked(token_required("one")(HealthCheckView.as_view(checks=[])), "Bearer one")[0] == 200


@pytest.mark.parametrize("tokens", [(), ("",), ("one", "")])
def test_an_empty_token_is_refused_at_once(tokens: tuple[str, ...]) -> None:
    with pytest.raises(ImproperlyConfigured, match="got an empty token, which everybody knows"):
        token_required(*tokens)
