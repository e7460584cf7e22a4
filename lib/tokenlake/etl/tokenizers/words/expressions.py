"""Parse the regular expressions that tokenizers split text with.

The syntax is the subset of Oniguruma's that can be run by an automaton which reads a
text once: literals, character classes, groups, alternatives, counted, lazy and
possessive repetition, and a look at the one character that follows. Everything else
raises :class:`UnsupportedError`.

A character class is not evaluated here. It stays source text, and
:mod:`tokenlake.etl.tokenizers.words.classes` asks the installed `tokenizers` for its
members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, final


@final
class UnsupportedError(ValueError):
    """A part of a tokenizer.json that this package cannot reproduce exactly; the
    message is the reason.
    """


@final
@dataclass(frozen=True, slots=True)
class CharacterClass:
    """One character out of a set.

    Attributes:
        source: Regular expression that matches exactly one character.
    """

    source: str


@final
@dataclass(frozen=True, slots=True)
class Concatenation:
    """Parts that follow each other; without parts it matches the empty text."""

    parts: tuple[Node, ...]


@final
@dataclass(frozen=True, slots=True)
class Alternatives:
    """The first of several branches that leads to a match."""

    branches: tuple[Node, ...]


@final
@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that is repeated.

    Attributes:
        part: The repeated part.
        least: Smallest number of repetitions.
        most: Largest number of repetitions; None for no limit.
        is_lazy: Whether fewer repetitions are preferred.
        is_possessive: Whether a repetition that was taken is never given back.
    """

    part: Node
    least: int
    most: int | None
    is_lazy: bool = False
    is_possessive: bool = False


@final
@dataclass(frozen=True, slots=True)
class Lookahead:
    """A condition on the next character, which is not consumed.

    Attributes:
        following: The class that is looked for.
        is_negative: Whether the next character must not belong to it; then the end of
            the text is accepted.
    """

    following: CharacterClass
    is_negative: bool


Node: TypeAlias = CharacterClass | Concatenation | Alternatives | Repeat | Lookahead

MOST_REPETITIONS: Final = 64
"""Largest count in a counted repetition: each one is a state of the automaton."""

_META: Final = frozenset("\\^$.|?*+()[]{}")
_NO_REPEAT: Final = frozenset("*+?{")
_CONTROLS: Final = {
    "r": "\r",
    "n": "\n",
    "t": "\t",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "e": "\x1b",
}
# \h is a hexadecimal digit in this syntax.
_CLASS_LETTERS: Final = frozenset("sSdDwWhH")
# Without regard to case, these pairs of letters also match one character, such as the
# ligature of "f" and "i".
_FOLDED_PAIRS: Final = frozenset(("ss", "st", "ff", "fi", "fl"))
_FOLDED_REPEATS: Final = frozenset("sf")
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")


def parse(source: str) -> Node:
    """Return the tree of an expression.

    Raises:
        UnsupportedError: The expression uses something that is not supported.
    """
    parser = _Parser(source)
    tree = parser.read_alternatives(ignores_case=False)
    if not parser.is_at_end:
        raise parser.unsupported("an unmatched )")
    return tree


def literal(text: str) -> Node:
    """Return the tree that matches a text itself."""
    return Concatenation(
        tuple(CharacterClass(_escaped(character)) for character in text)
    )


def _escaped(character: str) -> str:
    """Return the expression of one character."""
    return f"\\{character}" if character in _META else character


@final
class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the whole expression was read."""
        return self._place >= len(self._source)

    def unsupported(self, what: str) -> UnsupportedError:
        """Return the error for a part that is not supported."""
        return UnsupportedError(
            f"the expression {self._source!r} has {what} at character {self._place}"
        )

    def read_alternatives(self, *, ignores_case: bool) -> Node:
        """Read branches up to a closing parenthesis or the end."""
        branches = [self._read_sequence(ignores_case=ignores_case)]
        while self._takes("|"):
            branches.append(self._read_sequence(ignores_case=ignores_case))
        if len(branches) == 1:
            return branches[0]
        return Alternatives(tuple(branches))

    def _read_sequence(self, *, ignores_case: bool) -> Node:
        parts: list[Node] = []
        letter_before = ""
        while not self.is_at_end and self._source[self._place] not in "|)":
            begin = self._place
            part = self._read_part(ignores_case=ignores_case)
            letter = self._source[begin : self._place].lower()
            part = self._read_repetition(part)
            if ignores_case:
                is_repeated = isinstance(part, Repeat)
                if letter_before + letter in _FOLDED_PAIRS or (
                    is_repeated and letter in _FOLDED_REPEATS
                ):
                    raise self.unsupported("letters that fold to a ligature")
                letter_before = letter
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return Concatenation(tuple(parts))

    def _read_part(self, *, ignores_case: bool) -> Node:
        character = self._source[self._place]
        if character == "(":
            return self._read_group(ignores_case=ignores_case)
        if character == "[":
            source = self._read_brackets()
        elif character == "\\":
            source = self._read_escape()
        elif character in "^$.":
            raise self.unsupported(f"an unsupported {character}")
        elif character in _NO_REPEAT:
            raise self.unsupported("a repetition of nothing")
        else:
            self._place += 1
            source = character
        if ignores_case:
            if not source.isascii() or source.startswith("[^") or "\\" in source:
                raise self.unsupported("more than ASCII letters without regard to case")
            source = f"(?i:{source})"
        return CharacterClass(source)

    def _read_group(self, *, ignores_case: bool) -> Node:
        begin = self._place
        for opening, group_ignores_case in (
            ("(?:", ignores_case),
            ("(?i:", True),
            ("(?-i:", False),
        ):
            if self._takes(opening):
                tree = self.read_alternatives(ignores_case=group_ignores_case)
                self._close()
                return tree
        for opening, is_negative in (("(?!", True), ("(?=", False)):
            if self._takes(opening):
                following = self.read_alternatives(ignores_case=ignores_case)
                if not isinstance(following, CharacterClass):
                    raise self.unsupported("a look further than one character ahead")
                self._close()
                return Lookahead(following, is_negative)
        if self._source.startswith("(?", begin):
            raise self.unsupported(
                f"an unsupported group {self._source[begin : begin + 4]!r}"
            )
        self._place += 1
        tree = self.read_alternatives(ignores_case=ignores_case)
        self._close()
        return tree

    def _close(self) -> None:
        if not self._takes(")"):
            raise self.unsupported("a group without end")

    def _read_brackets(self) -> str:
        """Return the source of a bracketed class, nested classes included."""
        begin = self._place
        depth = 0
        while True:
            if self.is_at_end:
                raise self.unsupported("a class without end")
            character = self._source[self._place]
            if character == "\\":
                self._read_escape(is_in_class=True)
                continue
            self._place += 1
            if character == "[":
                depth += 1
                # A closing bracket right at the beginning is a member, about which
                # implementations disagree.
                self._takes("^")
                if not self.is_at_end and self._source[self._place] == "]":
                    raise self.unsupported("a ] at the beginning of a class")
            elif character == "]":
                depth -= 1
                if depth == 0:
                    return self._source[begin : self._place]

    def _read_escape(self, *, is_in_class: bool = False) -> str:
        """Return the source of one escaped character or class."""
        begin = self._place
        self._place += 1
        if self.is_at_end:
            raise self.unsupported("a backslash at the end")
        letter = self._source[self._place]
        self._place += 1
        if letter in "pP":
            end = self._source.find("}", self._place)
            if not self._source.startswith("{", self._place) or end < 0:
                raise self.unsupported("a property without braces")
            self._place = end + 1
        elif letter in "xu":
            self._read_code_point(letter)
        elif (
            letter.isalnum()
            and letter not in _CLASS_LETTERS
            and letter not in _CONTROLS
        ):
            is_backspace = is_in_class and letter == "b"
            if not is_backspace:
                raise self.unsupported(f"an unsupported \\{letter}")
        elif not letter.isascii():
            raise self.unsupported("an escaped character outside ASCII")
        return self._source[begin : self._place]

    def _read_code_point(self, letter: str) -> None:
        """Read the digits of a code point."""
        if letter == "x" and self._takes("{"):
            end = self._source.find("}", self._place)
            digits = self._source[self._place : end]
            self._place = end + 1
        else:
            size = 2 if letter == "x" else 4
            digits = self._source[self._place : self._place + size]
            self._place += size
            # Two digits above 7F name a byte, not a code point.
            if len(digits) < size or (letter == "x" and digits[:1] not in "01234567"):
                raise self.unsupported("a byte that is no character")
        if not digits or not _HEXADECIMAL.issuperset(digits):
            raise self.unsupported("a code point that is no number")

    def _read_repetition(self, part: Node) -> Node:
        """Return a part with the repetition that follows it."""
        least: int
        most: int | None
        is_counted = False
        if self._takes("*"):
            least, most = 0, None
        elif self._takes("+"):
            least, most = 1, None
        elif self._takes("?"):
            least, most = 0, 1
        elif self._takes("{"):
            least, most = self._read_counts()
            is_counted = True
        else:
            return part
        if isinstance(part, Lookahead):
            raise self.unsupported("a repeated lookahead")
        is_lazy = self._takes("?")
        is_possessive = not is_lazy and self._takes("+")
        # After a count, "+" repeats the repetition and "?" makes it optional or lazy.
        if is_counted and (is_lazy or is_possessive):
            raise self.unsupported("a repeated repetition")
        if not self.is_at_end and self._source[self._place] in _NO_REPEAT:
            raise self.unsupported("a repeated repetition")
        return Repeat(part, least, most, is_lazy, is_possessive)

    def _read_counts(self) -> tuple[int, int | None]:
        end = self._source.find("}", self._place)
        least, comma, most = self._source[
            self._place : max(end, self._place)
        ].partition(",")
        is_number = (
            least.isascii()
            and least.isdigit()
            and (not most or (most.isascii() and most.isdigit()))
        )
        if end < 0 or not is_number:
            raise self.unsupported("an unsupported {")
        self._place = end + 1
        first = int(least)
        last = first
        if comma:
            last = int(most) if most else None
        if first > MOST_REPETITIONS or (
            last is not None and not first <= last <= MOST_REPETITIONS
        ):
            raise self.unsupported(
                f"a repetition that is not in order or above {MOST_REPETITIONS}"
            )
        return first, last

    def _takes(self, text: str) -> bool:
        """Read a text if it comes next, and return whether it did."""
        is_next = self._source.startswith(text, self._place)
        if is_next:
            self._place += len(text)
        return is_next
