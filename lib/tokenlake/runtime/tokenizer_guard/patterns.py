"""Regular expressions of a tokenizer, and a check that they do not backtrack for long.

`tokenizers` runs them by Oniguruma, which backtracks. The time of an expression such as
``(a+)+$`` doubles with every character of a text. Whether an expression does that is
hard to decide in general, so only plain ones are accepted: no quantifier that repeats a
group, no reference back, and few quantifiers in each alternative. The expressions of
published models are plain, except for the ones in :data:`KNOWN`.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final = frozenset(
    {
        # BLOOM: a class in a class.
        " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    }
)
"""Expressions of published models that are not plain by the rules below.

They do not backtrack.
"""

MAX_LENGTH: Final = 4096  # characters of an expression
MAX_UNBOUNDED: Final = 3
"""Most quantifiers without an upper bound in one alternative.

The time grows with the length to this power.
"""
MAX_OPTIONAL: Final = 6
"""Most quantifiers with an upper bound in one alternative.

Each may double the time.
"""
MAX_GROUPS: Final = 4
"""Most groups in one alternative.

Each may multiply the time by its own alternatives.
"""
_MAX_REPEAT: Final = 64  # a larger upper bound counts as none
# Beginnings of groups that only look ahead or behind; they do not count as groups.
_LOOKING: Final = ("?=", "?!", "?<=", "?<!")


def is_plain(pattern: str) -> bool:
    """Return whether an expression is known not to backtrack for long.

    Example:
        ``\\s+(?!\\S)|\\p{N}{1,3}`` is plain; ``(a+)+``, ``(a)\\1`` and ``a?a?a?a?a?a?a?aaaaaaa`` are not.
    """
    if pattern in KNOWN:
        return True
    return len(pattern) <= MAX_LENGTH and _Scan(pattern).is_plain()


class _Scan:
    """One pass over an expression, which counts choices in each of its alternatives.

    Choices are the parts that may backtrack.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._depth = 0  # of open groups
        self._start_alternative()

    def is_plain(self) -> bool:
        """Return whether the whole expression is plain."""
        while self._place < len(self._pattern):
            if not self._step():
                return False
        return self._depth == 0

    def _start_alternative(self) -> None:
        """Begin to count: alternatives are tried one after the other."""
        self._unbounded = 0
        self._optional = 0
        self._groups = 0

    def _step(self) -> bool:
        """Read one element; return whether the expression is plain so far."""
        character = self._pattern[self._place]
        if character == "\\":
            return self._read_escape()
        if character == "[":
            return self._read_class()
        if character == "(":
            return self._open_group()
        if character == ")":
            return self._close_group()
        if character in "*+?{":
            return self._read_quantifier()
        # Alternatives inside a group count together: each may be tried for the same
        # text.
        if character == "|" and self._depth == 0:
            self._start_alternative()
        self._place += 1
        return True

    def _read_escape(self) -> bool:
        """Read a backslash and the element that it begins."""
        following = self._pattern[self._place + 1 : self._place + 2]
        # References back (\1, \k<name>) and calls of groups (\g<name>).
        if following == "" or following in "123456789kg":
            return False
        self._place += 2
        # A property has a name in braces.
        if following in "pPxu" and self._pattern[self._place : self._place + 1] == "{":
            brace_end = self._pattern.find("}", self._place)
            if brace_end < 0:
                return False
            self._place = brace_end + 1
        return True

    def _read_class(self) -> bool:
        """Read a class of characters up to its closing bracket."""
        self._place += 1
        while self._place < len(self._pattern):
            character = self._pattern[self._place]
            if character == "]":
                self._place += 1
                return True
            if character == "[":  # a class in a class
                return False
            # An escaped bracket does not close the class.
            self._place += 2 if character == "\\" else 1
        return False

    def _open_group(self) -> bool:
        """Read the beginning of a group, options included."""
        self._place += 1
        self._depth += 1
        following = self._pattern[self._place : self._place + 3]
        is_looking = following.startswith(_LOOKING)
        if not is_looking:
            self._groups += 1
        if following.startswith("?"):
            # Conditions, names, calls, absent groups.
            if following[1:2] in ("(", "P", "&", "R", "~", ""):
                return False
            # The characters up to a colon are options or the kind of the group, no
            # quantifier.
            self._place += 1
            while self._has_group_option():
                is_last = self._pattern[self._place] in ":=!>"
                self._place += 1
                if is_last:
                    break
        return self._groups <= MAX_GROUPS

    def _has_group_option(self) -> bool:
        """Return whether the next character is one of the options of a group."""
        if self._place >= len(self._pattern):
            return False
        return self._pattern[self._place] in ":=!<>imsx-"

    def _close_group(self) -> bool:
        """Read the end of a group; it must not be repeated."""
        self._place += 1
        self._depth -= 1
        following = self._pattern[self._place : self._place + 1]
        return self._depth >= 0 and (following == "" or following not in "*+{")

    def _read_quantifier(self) -> bool:
        """Read a quantifier, and count it by its upper bound."""
        character = self._pattern[self._place]
        is_unbounded = character in "*+"
        has_choice = True
        self._place += 1
        if character == "{":
            brace_end = self._pattern.find("}", self._place)
            bounds = self._pattern[self._place : max(brace_end, self._place)].split(",")
            has_numbers = all(bound.isdecimal() or bound == "" for bound in bounds)
            if not has_numbers or len(bounds) > 2:
                return True  # a brace that stands for itself
            self._place = brace_end + 1
            is_unbounded = bounds[-1] == "" or int(bounds[-1]) > _MAX_REPEAT
            has_choice = len(bounds) > 1  # {3} leaves none
        # A sign after a quantifier: ``+?`` is lazy and ``++`` possessive; more of them
        # repeat a repetition.
        if self._pattern[self._place : self._place + 1] in ("?", "+"):
            self._place += 1
        if self._pattern[self._place : self._place + 1] in ("*", "+", "{"):
            return False
        if is_unbounded:
            self._unbounded += 1
        elif has_choice:
            self._optional += 1
        return self._unbounded <= MAX_UNBOUNDED and self._optional <= MAX_OPTIONAL
