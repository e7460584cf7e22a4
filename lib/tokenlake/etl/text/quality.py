"""Rules on the quality of a document's text: those of Gopher, C4 and FineWeb.

Every constant is in :data:`CONSTANTS`, with its source; a configuration may set
another. A filter judges a document and does not change it. The first rule that a
document breaks is the reason under which the document is counted.

A word here is a run of letters and digits with signs inside it (``x=3``, ``don't``), a
run of dashes or dots, or one other sign; the papers do not define theirs. datatrove
uses the words of spaCy, in which "don't" is two.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Final, final

import numpy as np

from tokenlake.config.quality import CONSTANTS
from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.fields import one_name
from tokenlake.etl.text.transform import Fields, RowStep, StepOutcome, needed

_WORD: Final = re.compile(
    r"[^\W_]+(?:(?:[^\s\w,/—–-]|_)+[^\W_]+|(?<=\d),\d+)*|-+|\.+|~+|[^\w\s]|_"
)
_PARAGRAPHS: Final = re.compile(r"\n{2,}")
_LINES: Final = re.compile(r"\n+")
_CITATION: Final = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")

# Unicode's property Sentence_Terminal, in hexadecimal: FineWeb's "terminal punctuation"
# in any script.
_TERMINAL_RANGES: Final = """\
21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6
17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E
2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52
FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6
111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944
11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F
1DA88"""


def _characters_of(ranges: str) -> tuple[str, ...]:
    """Return the characters of ranges of code points in hexadecimal.

    Args:
        ranges: Code points and ranges between blanks, such as ``21 61D-61F``.
    """
    characters: list[str] = []
    for code_range in ranges.split():
        first_code, _, last_code = code_range.partition("-")
        begin = int(first_code, 16)
        end = int(last_code or first_code, 16) + 1
        characters += map(chr, range(begin, end))
    return tuple(characters)


def _control_characters() -> str:
    """Return the control characters, but not the blanks tab and line feed."""
    # All control characters of Unicode are among the first 256 characters.
    controls = ""
    for character in map(chr, range(256)):
        is_control = unicodedata.category(character) == "Cc"
        if is_control and character not in "\t\n":
            controls += character
    return controls


TERMINALS: Final = _characters_of(_TERMINAL_RANGES)
"""Characters that end a sentence, in any script."""
_TERMINAL: Final = frozenset(TERMINALS)

# Punctuation of CCNet (Wenzek et al. 2020, https://arxiv.org/abs/1911.00359), and
# control characters.
_CCNET: Final = "，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►"
_CONTROLS: Final = _control_characters()
_PUNCTUATION: Final = string.punctuation + _CCNET + _CONTROLS + "".join(TERMINALS)
# Gopher's stop words, of which a text must have some (`min_stop_words`).
_STOP_WORDS: Final = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
# Marks that may end a line, and phrases of pages' footers, both of C4.
_C4_ENDS: Final = (".", "?", "!", '"', "'")
_C4_POLICIES: Final = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


@final
class JudgedText:
    """A text with its words, which several filters read and which are made once."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> list[str]:
        """Words of the text, as the module defines them."""
        return _WORD.findall(self.text)


Constants = Mapping[str, float]
Rule = Callable[[JudgedText, Constants], str | None]
"""Returns the rule that a text breaks; None where it breaks none."""


def _gopher_quality(document: JudgedText, limit: Constants) -> str | None:
    """Rules of quality in Gopher's data (Rae et al. 2021, section A.1.1)."""
    words = document.words
    # Words that are more than punctuation.
    real_words = [word for word in words if word.isalnum() or word.strip(_PUNCTUATION)]
    # Counts and lengths are of words alone, shares below of all tokens.
    if len(real_words) < limit["min_words"]:
        return "few_words"
    if len(real_words) > limit["max_words"]:
        return "many_words"
    mean_length = 0.0
    if real_words:
        mean_length = float(np.mean([len(word) for word in real_words]))
    if mean_length < limit["min_word_length"]:
        return "short_words"
    if mean_length > limit["max_word_length"]:
        return "long_words"
    return _gopher_symbols(document.text, words, limit)


def _gopher_symbols(text: str, words: Sequence[str], limit: Constants) -> str | None:
    """Rules of Gopher on symbols, lines and stop words."""
    # A text without any word is never here: it has too few of them.
    if text.count("#") / len(words) > limit["max_symbols"]:
        return "hashes"
    ellipses = text.count("...") + text.count("…")
    if ellipses / len(words) > limit["max_symbols"]:
        return "ellipses"
    # Shares of lines and of words. The last line end begins no further line.
    lines = text.splitlines()
    bullets = _share(line.lstrip().startswith(("•", "-")) for line in lines)
    if bullets > limit["max_bullet_lines"]:
        return "bullets"
    ellipsis_ends = _share(line.rstrip().endswith(("...", "…")) for line in lines)
    if ellipsis_ends > limit["max_ellipsis_lines"]:
        return "ellipsis_lines"
    # The whole word is asked first: most words are letters alone.
    with_letters = _share(
        word.isalpha() or any(map(str.isalpha, word)) for word in words
    )
    if with_letters < limit["min_alphabetic"]:
        return "few_letters"
    if len(_STOP_WORDS.intersection(words)) < limit["min_stop_words"]:
        return "few_stop_words"
    return None


def _share(verdicts: Iterable[bool]) -> float:
    """Return the share of verdicts that are true."""
    verdict_list = list(verdicts)
    return sum(verdict_list) / len(verdict_list)


def _gopher_repetition(document: JudgedText, limit: Constants) -> str | None:
    """Rules against repetition (Rae et al. 2021, table A1)."""
    text = document.text
    if not text:
        return "empty"
    # 1. Repeated paragraphs and lines: their share, and that of their characters.
    paragraphs = _PARAGRAPHS.split(text.strip())
    lines = _LINES.split(text)
    for unit_name, units in (("paragraphs", paragraphs), ("lines", lines)):
        repeated_units, characters = _repeated(units)
        if repeated_units / len(units) > limit[f"max_repeated_{unit_name}"]:
            return f"repeated_{unit_name}"
        if characters / len(text) > limit[f"max_in_repeated_{unit_name}"]:
            return f"in_repeated_{unit_name}"
    # 2. Short n-grams: the most frequent one.
    words = document.words
    for ngram_size in (2, 3, 4):
        characters = _in_top_ngram(words, ngram_size)
        if characters / len(text) > limit[f"max_in_top_{ngram_size}gram"]:
            return f"in_top_{ngram_size}gram"
    # 3. Long n-grams: all that are repeated.
    for ngram_size in range(5, 11):
        characters = _in_repeated_ngrams(words, ngram_size)
        if characters / len(text) > limit[f"max_in_repeated_{ngram_size}grams"]:
            return f"in_repeated_{ngram_size}grams"
    return None


def _repeated(parts: Iterable[str]) -> tuple[int, int]:
    """Return the number of parts that repeat an earlier part, and of their characters."""
    earlier_parts = set[str]()
    repeated_parts = 0
    characters = 0
    for part in parts:
        if part in earlier_parts:
            repeated_parts += 1
            characters += len(part)
        earlier_parts.add(part)
    return repeated_parts, characters


def _in_top_ngram(words: Sequence[str], ngram_size: int) -> int:
    """Return the number of characters in all places of the most frequent n-gram.

    Of equally frequent ones the first counts.
    """
    # Shifted lists zip to n-grams without a loop in Python: every word is passed.
    shifted_words = [words[shift:] for shift in range(ngram_size)]
    ngrams = Counter(zip(*shifted_words, strict=False))
    if not ngrams:
        return 0
    top_ngram, occurrences = max(ngrams.items(), key=itemgetter(1))
    blanks = ngram_size - 1
    return (sum(map(len, top_ngram)) + blanks) * occurrences


def _in_repeated_ngrams(words: Sequence[str], ngram_size: int) -> int:
    """Return the number of characters in n-grams that repeat an earlier one.

    The search goes on behind such an n-gram, so that no word counts twice.
    """
    earlier_ngrams = set[str]()
    word_index = 0
    characters = 0
    while word_index <= len(words) - ngram_size:
        ngram = "".join(words[word_index : word_index + ngram_size])
        if ngram in earlier_ngrams:
            characters += len(ngram)
            word_index += ngram_size
        else:
            earlier_ngrams.add(ngram)
            word_index += 1
    return characters


def _c4(document: JudgedText, limit: Constants) -> str | None:
    """Rules of C4 (Raffel et al. 2020, section 2.2).

    A page without its poor lines must have enough sentences.
    """
    sentences = 0
    for line in document.text.splitlines():
        # Lines with very long words, without a sentence's end, or with few words are
        # left out.
        line = line.strip()
        words = line.split()
        if any(len(word) > limit["max_word_length"] for word in words):
            continue
        line = _CITATION.sub("", line)
        if limit["line_ends"] and (not line.endswith(_C4_ENDS) or line.endswith("...")):
            continue
        if len(words) < limit["min_line_words"]:
            continue
        # Some words make the whole page a poor one, others only their line.
        lowered_line = line.lower()
        if "lorem ipsum" in lowered_line:
            return "lorem_ipsum"
        if "javascript" in lowered_line:
            continue
        if "{" in line:
            return "curly_bracket"
        if not any(phrase in lowered_line for phrase in _C4_POLICIES):
            sentences += count_sentences(_WORD.findall(line))
    if sentences < limit["min_sentences"]:
        return "few_sentences"
    return None


def count_sentences(words: Sequence[str]) -> int:
    """Return the number of sentences.

    A sentence ends at a terminal mark that is followed by more than punctuation.
    """
    if not words:
        return 0
    sentence_count = 1
    has_ended = False
    for word in words:
        if word in _TERMINAL:
            has_ended = True
        elif has_ended and not _is_punctuation(word):
            sentence_count += 1
            has_ended = False
    return sentence_count


def _is_punctuation(word: str) -> bool:
    """Return whether all characters of a word are punctuation, as Unicode has it."""
    return all(unicodedata.category(character)[0] == "P" for character in word)


def _fineweb(document: JudgedText, limit: Constants) -> str | None:
    """FineWeb's own rules (Penedo et al. 2024, section 3.6), beside Gopher's and C4's."""
    lines = [line for line in document.text.split("\n") if line.strip()]
    if not lines:
        return "empty"
    line_ends = _share(line.endswith(TERMINALS) for line in lines)
    if line_ends < limit["min_line_ends"]:
        return "line_ends"
    short_lines = _share(len(line) <= limit["short_line"] for line in lines)
    if short_lines > limit["max_short_lines"]:
        return "short_lines"
    # Characters in repeated lines, and line ends per word.
    characters = len(document.text.replace("\n", ""))
    _, repeated_characters = _repeated(lines)
    if repeated_characters / characters > limit["max_in_repeated_lines"]:
        return "in_repeated_lines"
    newlines = document.text.count("\n")
    if newlines / len(document.words) > limit["max_newlines_per_word"]:
        return "list"
    return None


_RULES: Final[dict[str, Rule]] = {
    "gopher_repetition": _gopher_repetition,
    "gopher_quality": _gopher_quality,
    "c4": _c4,
    "fineweb": _fineweb,
}
Judge = Callable[[str], str | None]
"""Returns the reason for which a text is left out, such as
``gopher_quality.few_words``; None to keep it.
"""


def open_quality(filters: Iterable[tuple[str, Iterable[tuple[str, float]]]]) -> Judge:
    """Return the judge that applies filters in their order.

    The first broken rule is the reason.

    Args:
        filters: (name, constants) of each filter; other constants have their published
            values.
    """
    rules: list[tuple[str, Rule, Constants]] = []
    for filter_name, own_constants in filters:
        constants: dict[str, float] = {}
        for constant_name, (published_value, _) in CONSTANTS[filter_name].items():
            constants[constant_name] = published_value
        constants.update(own_constants)
        rules.append((filter_name, _RULES[filter_name], constants))
    return partial(_judge, rules)


def _judge(rules: Sequence[tuple[str, Rule, Constants]], text: str) -> str | None:
    """Return the first rule that a text breaks; None where it breaks none."""
    # The words of the text are made once for all filters.
    document = JudgedText(text)
    for filter_name, rule, constants in rules:
        broken_rule = rule(document, constants)
        if broken_rule is not None:
            return f"{filter_name}.{broken_rule}"
    return None


@final
class QualityFilter(RowStep):
    """Keeps the rows whose text passes published filters.

    Others are counted by the rule that they break.

    Args:
        filters: (name, constants that differ from the published ones) of each filter,
            in the order of their use.
        field: Field of the text; a row in which it is no text is bad (``not_text``).
    """

    def __init__(
        self,
        filters: Iterable[tuple[str, Iterable[tuple[str, float]]]],
        field: str = "text",
    ) -> None:
        self._field = one_name("QualityFilter", field)
        self._judge = open_quality(filters)

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the row, or nothing."""
        value = example.get(self._field)
        if not isinstance(value, str):
            fault = self._fault(value)
            raise BadRecordError(fault.detail, reason=fault.reason)
        if self._judge(value):
            return ()
        return (example,)

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Filter many rows."""
        is_kept = np.zeros(len(rows), np.bool_)
        filtered: Counter[str] = Counter()
        bad: list[tuple[int, Fault]] = []
        for row, value in enumerate(rows.values(self._field)):
            if not isinstance(value, str):
                bad.append((row, self._fault(value)))
                continue
            reason = self._judge(value)
            if reason is None:
                is_kept[row] = True
            else:
                filtered[reason] += 1
        return StepOutcome(
            rows.select(is_kept), np.flatnonzero(is_kept), dict(filtered), tuple(bad)
        )

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field of the text, and the wanted fields."""
        return needed(wanted, (self._field,))

    def _fault(self, value: Any) -> Fault:
        """Return the fault of a row whose text is none."""
        detail = f"QualityFilter: the field {self._field!r} holds {type(value).__name__}, no text"
        return Fault("not_text", detail)
