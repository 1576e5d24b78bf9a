"""What a parser makes of input that may be anything."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gateway.errors import S3Error

P = ParamSpec("P")
T = TypeVar("T")


def outcome(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | S3Error:
    """The result, or the S3 error raised; any other exception passes."""
    try:
        return function(*args, **kwargs)
    except S3Error as error:
        return error
