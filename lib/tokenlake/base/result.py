"""A value or an error that is returned instead of raised, by the classes of :mod:`tokenlake.data_pipeline`.

An analogy: a parcel with a label that says whether the thing or an apology is inside. Whoever opens it without reading
the label, by :meth:`Result.unwrap`, gets the apology thrown at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, cast, final

from tokenlake.errors import TokenlakeError

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
U = TypeVar("U")
T = TypeVar("T")
E = TypeVar("E")


class Result(Generic[T_co, E_co]):
    """Either :class:`Ok` with a value, or :class:`Err` with an error; nothing else."""

    __slots__ = ()

    def is_ok(self) -> bool:
        """Return whether there is a value."""
        return isinstance(self, Ok)

    def is_err(self) -> bool:
        """Return whether there is an error."""
        return not self.is_ok()

    def unwrap(self) -> T_co:
        """Return the value.

        Raises:
            BaseException: The error itself.
            TokenlakeError: The error is no exception.
        """
        match self:
            case Ok(value):
                return value
            case Err(BaseException() as error):
                raise error
            case _:
                raise TokenlakeError(str(self.unwrap_err()))

    def unwrap_err(self) -> E_co:
        """Return the error.

        Raises:
            TokenlakeError: The result is a value.
        """
        if isinstance(self, Err):
            return cast("Err[E_co]", self).error
        text = repr(self.unwrap())
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise TokenlakeError(f"unwrap_err was called on Ok({shown}); check is_err() first")

    def unwrap_or(self, default: Any) -> Any:
        """Return the value, or `default` for an error."""
        return self.unwrap() if self.is_ok() else default

    def map(self, function: Callable[[Any], U]) -> Result[U, E_co]:
        """Return the result with `function` applied to the value; an error stays as it is."""
        if self.is_err():
            return cast("Result[U, E_co]", self)
        return Ok(function(self.unwrap()))

    def map_err(self, function: Callable[[Any], U]) -> Result[T_co, U]:
        """Return the result with `function` applied to the error; a value stays as it is."""
        if self.is_ok():
            return cast("Result[T_co, U]", self)
        return Err(function(self.unwrap_err()))

    def and_then(self, function: Callable[[Any], Result[U, Any]]) -> Result[U, Any]:
        """Return the result of a function of the value, which may fail; an error stays as it is."""
        if self.is_err():
            return cast("Result[U, Any]", self)
        return function(self.unwrap())

    flat_map = and_then

    def or_else(self, function: Callable[[Any], Result[Any, U]]) -> Result[Any, U]:
        """Return the result of a function of the error, which may be a value; a value stays as it is."""
        if self.is_ok():
            return cast("Result[Any, U]", self)
        return function(self.unwrap_err())

    def unwrap_or_else(self, function: Callable[[Any], Any]) -> Any:
        """Return the value, or the result of a function of the error."""
        if self.is_ok():
            return self.unwrap()
        return function(self.unwrap_err())


@final
@dataclass(frozen=True, slots=True)
class Ok(Result[T_co, Never]):
    """A value."""

    value: T_co


@final
@dataclass(frozen=True, slots=True)
class Err(Result[Never, E_co]):
    """An error; those of Tokenlake say ``field_path``, ``expected`` and ``got``."""

    error: E_co


def attempt(function: Callable[[], T]) -> Result[T, TokenlakeError]:
    """Return the result of a function, or the error of Tokenlake that it raises; any other error is raised."""
    try:
        return Ok(function())
    except TokenlakeError as error:
        return Err(error)


def is_ok(result: Result[Any, Any]) -> bool:
    """Return whether there is a value."""
    return result.is_ok()


def is_err(result: Result[Any, Any]) -> bool:
    """Return whether there is an error."""
    return result.is_err()


def unwrap(result: Result[T, Any]) -> T:
    """Return the value; raise the error where there is one."""
    return result.unwrap()


def unwrap_or(result: Result[T, Any], default: U) -> T | U:
    """Return the value, or `default` where there is none."""
    return result.unwrap_or(default)


def map_result(result: Result[T, E], function: Callable[[T], U]) -> Result[U, E]:
    """Return the result with `function` applied to the value."""
    return result.map(function)


def map_err(result: Result[T, E], function: Callable[[E], U]) -> Result[T, U]:
    """Return the result with `function` applied to the error."""
    return result.map_err(function)


def flat_map(result: Result[T, Any], function: Callable[[T], Result[U, Any]]) -> Result[U, Any]:
    """Return the result of a function of the value, which may fail."""
    return result.and_then(function)
