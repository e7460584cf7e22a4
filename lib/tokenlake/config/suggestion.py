"""What did they mean? The known word nearest to a mistyped one, ready for the end of a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from tokenlake.errors import ConfigError


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the member of `known` that looks most like `word`, or None when nothing does.

    Letter case, and the choice between ``-``, ``_`` and a space, do not count.
    """
    by_plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(word), by_plain, n=1, cutoff=0.6)
    return by_plain[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or nothing when no known word is near."""
    found = nearest(word, known)
    return f"; did you mean {found!r}?" if found is not None else ""


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise a ConfigError, with what was expected, unless the argument `name` is one of `allowed`."""
    if value not in allowed:
        expected = f"one of {', '.join(map(repr, allowed))}"
        raise ConfigError(
            f"{name} is {value!r}, expected {expected}", field_path=name, expected=expected, got=repr(value)
        )


def _plain(word: object) -> str:
    return str(word).casefold().replace("-", "_").replace(" ", "_")
