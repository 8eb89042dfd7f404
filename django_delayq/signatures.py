"""What a handler's function must look like, and the type T that its `Message[T]` gives the data."""

import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from django_delayq.codec import decoder_for
from django_delayq.message import Message


def check_signature(func: object) -> None:
    """Raise `TypeError` unless `func` is a function, sync or async, that takes a message and nothing else."""
    if not inspect.isroutine(func):
        raise TypeError(f"a handler is a function, not {type(func).__name__}; write @delay_execute above a def.")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError("a generator does nothing when called; leave out `yield`, or send a message per step.")
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"it takes {inspect.signature(func)}; it must take one positional argument: (message).")


def data_type_of(func: Callable[..., Any]) -> Any:
    """T of the function's `Message[T]`; `Any` for a bare `Message` and without an annotation.

    Raises `TypeError` for an annotation that can't be resolved, is no message, or has a T that msgspec can't convert.
    """
    annotation = _resolved(func)
    if annotation in (Any, Message):
        return Any
    if typing.get_origin(annotation) is not Message:
        raise TypeError(f"its argument is annotated {annotation!r}; a handler takes a Message[...].")
    (data_type,) = typing.get_args(annotation)
    if data_type in (Any, object):
        return Any
    decoder_for(data_type)
    return data_type


def _resolved(func: Callable[..., Any]) -> Any:
    # Only the argument's annotation: the result's may be known to type checkers alone.
    name = next(iter(inspect.signature(func).parameters))
    names = getattr(inspect.unwrap(func), "__globals__", {})
    try:
        annotation = func.__annotations__.get(name, Any)
        return typing.get_type_hints(SimpleNamespace(__annotations__={name: annotation}), names)[name]
    except Exception as error:
        raise TypeError(f"its annotation can't be resolved: {error}; import what it names at run time.") from error
