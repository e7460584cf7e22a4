"""A value or an error, handed back instead of raised: what the calls of the second system return.

An analogy: a parcel with a label that says whether the thing or an apology is inside. Whoever opens it without reading
the label, by :meth:`Result.unwrap`, gets the apology thrown at them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, final

from tokenlake.errors import TokenlakeError

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
U = TypeVar("U")


class Result(ABC, Generic[T_co, E_co]):
    """Either :class:`Ok` with a value, or :class:`Err` with an error; nothing else."""

    __slots__ = ()

    @abstractmethod
    def is_ok(self) -> bool:
        """Return whether there is a value."""

    def is_err(self) -> bool:
        """Return whether there is an error."""
        return not self.is_ok()

    @abstractmethod
    def unwrap(self) -> T_co:
        """Return the value.

        Raises:
            the error itself, where there is one; TokenlakeError for one that is no exception.
        """

    @abstractmethod
    def unwrap_err(self) -> E_co:
        """Return the error.

        Raises:
            TokenlakeError: there is a value.
        """

    @abstractmethod
    def unwrap_or(self, default: Any) -> Any:
        """Return the value, or `default` where there is none."""

    @abstractmethod
    def map(self, function: Callable[[Any], U]) -> Result[U, E_co]:
        """Return the result with `function` applied to the value; an error stays as it is."""


@final
@dataclass(frozen=True, slots=True)
class Ok(Result[T_co, Never]):
    """A value."""

    value: T_co

    def is_ok(self) -> bool:
        return True

    def unwrap(self) -> T_co:
        return self.value

    def unwrap_err(self) -> Never:
        raise TokenlakeError(f"unwrap_err was called on Ok({_short(self.value)}); ask is_err() first")

    def unwrap_or(self, default: Any) -> Any:
        return self.value

    def map(self, function: Callable[[Any], U]) -> Ok[U]:
        return Ok(function(self.value))


@final
@dataclass(frozen=True, slots=True)
class Err(Result[Never, E_co]):
    """An error; those of Tokenlake say ``field_path``, ``expected`` and ``got``."""

    error: E_co

    def is_ok(self) -> bool:
        return False

    def unwrap(self) -> Never:
        if isinstance(self.error, BaseException):
            raise self.error
        raise TokenlakeError(str(self.error))

    def unwrap_err(self) -> E_co:
        return self.error

    def unwrap_or(self, default: Any) -> Any:
        return default

    def map(self, function: Callable[[Any], U]) -> Err[E_co]:
        return self


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
