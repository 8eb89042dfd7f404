"""A strict policy, as a careful site has it."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


def strict_policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: nothing but what this server serves as a file of its own."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return answer
