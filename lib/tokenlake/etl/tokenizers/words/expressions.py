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
    """A part of a tokenizer.json cannot be reproduced exactly.

    The message is the reason.
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

# Characters that stand for themselves only after a backslash.
_META: Final = frozenset("\\^$.|?*+()[]{}")
# Characters that begin a repetition.
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
# A repetition of one of these holds such a pair.
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


def _is_number(digits: str) -> bool:
    """Whether a text is a number in ASCII digits."""
    return digits.isascii() and digits.isdigit()


def _escaped(character: str) -> str:
    """Return the expression of one character."""
    if character in _META:
        return f"\\{character}"
    return character


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

    def unsupported(self, part: str) -> UnsupportedError:
        """Return the error for a part that is not supported."""
        return UnsupportedError(
            f"the expression {self._source!r} has {part} at character {self._place}"
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
        previous_letter = ""
        while not self.is_at_end and self._source[self._place] not in "|)":
            begin = self._place
            part = self._read_part(ignores_case=ignores_case)
            letter = self._source[begin : self._place].lower()
            part = self._read_repetition(part)
            if ignores_case:
                # Without regard to case, two neighbours may match one character.
                is_repeated = isinstance(part, Repeat)
                is_folded_repeat = is_repeated and letter in _FOLDED_REPEATS
                if previous_letter + letter in _FOLDED_PAIRS or is_folded_repeat:
                    raise self.unsupported("letters that fold to a ligature")
                previous_letter = letter
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
            # Folding beyond ASCII, and that of a negated class, depends on the engine.
            if not source.isascii() or source.startswith("[^") or "\\" in source:
                raise self.unsupported("more than ASCII letters without regard to case")
            source = f"(?i:{source})"
        return CharacterClass(source)

    def _read_group(self, *, ignores_case: bool) -> Node:
        begin = self._place
        # 1. Groups that capture nothing; two of them set the regard to case.
        for opening, group_ignores_case in (
            ("(?:", ignores_case),
            ("(?i:", True),
            ("(?-i:", False),
        ):
            if self._takes(opening):
                tree = self.read_alternatives(ignores_case=group_ignores_case)
                self._close()
                return tree
        # 2. Conditions on the next character.
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
        # 3. A plain group. What it captures is never used.
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
            closing_brace = self._source.find("}", self._place)
            if not self._source.startswith("{", self._place) or closing_brace < 0:
                raise self.unsupported("a property without braces")
            self._place = closing_brace + 1
        elif letter in "xu":
            self._read_code_point(letter)
        elif letter.isalnum() and not (letter in _CLASS_LETTERS or letter in _CONTROLS):
            # \b is a backspace in a class, and the border of a word outside.
            is_backspace = is_in_class and letter == "b"
            if not is_backspace:
                raise self.unsupported(f"an unsupported \\{letter}")
        elif not letter.isascii():
            raise self.unsupported("an escaped character outside ASCII")
        return self._source[begin : self._place]

    def _read_code_point(self, letter: str) -> None:
        """Read the digits of a code point."""
        if letter == "x" and self._takes("{"):
            closing_brace = self._source.find("}", self._place)
            digits = self._source[self._place : closing_brace]
            self._place = closing_brace + 1
        else:
            digit_count = 4
            if letter == "x":
                digit_count = 2
            digits = self._source[self._place : self._place + digit_count]
            self._place += digit_count
            # Two digits above 7F name a byte, not a code point.
            if len(digits) < digit_count or (
                letter == "x" and digits[:1] not in "01234567"
            ):
                raise self.unsupported("a byte that is no character")
        if not digits or not _HEXADECIMAL.issuperset(digits):
            raise self.unsupported("a code point that is no number")

    def _read_repetition(self, part: Node) -> Node:
        """Return a part with the repetition that follows it."""
        # 1. The numbers of repetitions.
        least_count = 0
        most_count: int | None = None
        is_counted = False
        if self._takes("*"):
            # Any number.
            pass
        elif self._takes("+"):
            least_count = 1
        elif self._takes("?"):
            most_count = 1
        elif self._takes("{"):
            least_count, most_count = self._read_counts()
            is_counted = True
        else:
            return part

        # 2. The preference.
        if isinstance(part, Lookahead):
            raise self.unsupported("a repeated lookahead")
        is_lazy = self._takes("?")
        is_possessive = not is_lazy and self._takes("+")
        # After a count, "+" repeats the repetition and "?" makes it optional or lazy.
        if is_counted and (is_lazy or is_possessive):
            raise self.unsupported("a repeated repetition")
        if not self.is_at_end and self._source[self._place] in _NO_REPEAT:
            raise self.unsupported("a repeated repetition")
        return Repeat(part, least_count, most_count, is_lazy, is_possessive)

    def _read_counts(self) -> tuple[int, int | None]:
        """Return the smallest and the largest count up to the closing brace."""
        # 1. Split `{2}`, `{2,}` or `{2,5}`. A brace with anything else, such as `{,5}`,
        #    is read differently by different implementations.
        closing_brace = self._source.find("}", self._place)
        if closing_brace < 0:
            raise self.unsupported("an unsupported {")
        counts = self._source[self._place : closing_brace]
        least_digits, comma, most_digits = counts.partition(",")
        has_most = most_digits != ""
        if not _is_number(least_digits) or (has_most and not _is_number(most_digits)):
            raise self.unsupported("an unsupported {")
        self._place = closing_brace + 1

        # 2. Check the counts. `{2}` is exactly two, and `{2,}` has no largest count.
        least_count = int(least_digits)
        most_count: int | None = least_count
        if has_most:
            most_count = int(most_digits)
        elif comma:
            most_count = None
        is_in_order = (
            most_count is None or least_count <= most_count <= MOST_REPETITIONS
        )
        if least_count > MOST_REPETITIONS or not is_in_order:
            raise self.unsupported(
                f"a repetition that is not in order or above {MOST_REPETITIONS}"
            )
        return least_count, most_count

    def _takes(self, expected: str) -> bool:
        """Read a text if it comes next, and return whether it did."""
        is_next = self._source.startswith(expected, self._place)
        if is_next:
            self._place += len(expected)
        return is_next
