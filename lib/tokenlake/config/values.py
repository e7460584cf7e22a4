"""What people write and what they mean: the nearest known word, sizes such as ``"500MB"``, stores, formats of inputs,
constants of filters; nothing here needs the models.

All units of sizes are binary, with and without the ``i``: 1 KB = 1 KiB = 1024 bytes.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from tokenlake.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIB: Final = 1 << 20

PATTERN: Final = r"^ *[0-9]+(\.[0-9]+)? *([kKmMgGtTpP][iI]?)?[bB]? *$"
"""The form of a size as a regular expression, in the part of the syntax that Python and ECMA share."""

_LARGEST: Final = (1 << 63) - 1
_UNITS: Final = " kmgtp"  # powers of 1024
_SIZE: Final = re.compile(r" *([0-9]+(?:\.[0-9]+)?) *(?:([kmgtp])i?)?b? *", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(r" *([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhdw]) *", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


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
    """Raise a ConfigError, with what was expected and the nearest of it, unless an argument is one of `allowed`."""
    if not isinstance(value, Hashable) or value not in allowed:
        expected = f"one of {', '.join(map(repr, allowed))}"
        near = did_you_mean(value, [each for each in allowed if isinstance(each, str)])
        told = f"{name} is {value!r}, expected {expected}{near}"
        raise ConfigError(told, field_path=name, expected=expected, got=repr(value))


def expected(what: str, got: object, must: str) -> ConfigError:
    """Return the error for an argument that is not what it must be; a value of some size is told by its type."""
    plain = got is None or isinstance(got, str | int | float)
    shown = f"{got!r:.80}" if plain else f"a {type(got).__name__}"
    return ConfigError(f"{what}: got {shown}, must be {must}", got=shown)


def whole_number(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number from `least` to `most`.

    An integer of NumPy is a whole number; a boolean, a float and an array are none.
    """
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = index(value)
        except TypeError:
            number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        allowed = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
        raise expected(what, value, f"a whole number{allowed}")
    return number


def bounded_number(what: str, value: Any, least: int, most: int) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number from `least` to `most`.

    As :func:`whole_number`, for a limit so large that only an error about it needs to name it.
    """
    number = whole_number(what, value, least)
    return whole_number(what, number, least, most)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return plain data with `leaf` applied to everything in it that is neither a mapping nor a list."""
    if isinstance(value, Mapping):
        return {key: mapped(item, leaf) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [mapped(item, leaf) for item in cast("Sequence[Any]", value)]
    return leaf(value)


EXACT_SUM: Final = 1e-6
"""Weights whose sum is as near to 1 are taken as they are written."""
_ROUNDED_SUM: Final = 1.5e-3  # three thirds, written as 0.333
_ROUNDED_PERCENT: Final = 0.15


def shares_of(weights: Mapping[str, float]) -> dict[str, float] | None:
    """Return weights as shares that sum to 1; None where it is not clear what they mean.

    Weights are one of::

        shares            0.3  0.7         they sum to 1
        rounded shares    0.3334  0.6667   they sum to 1 within 0.0015, and are divided by their sum
        percentages       33.3  66.7       they sum to 100 within 0.15
        ratios            30  70           whole numbers

    Args:
        weights: Name to weight, finite and not negative.
    """
    total = math.fsum(weights.values())
    if abs(total - 1.0) <= EXACT_SUM:
        return dict(weights)
    is_rounded = abs(total - 1.0) <= _ROUNDED_SUM
    is_percentage = abs(total - 100.0) <= _ROUNDED_PERCENT
    is_ratio = 1.0 < total < math.inf and all(float(weight).is_integer() for weight in weights.values())
    if not (is_rounded or is_percentage or is_ratio):
        return None
    whole = sum(Fraction(weight) for weight in weights.values())
    return {name: float(Fraction(weight) / whole) for name, weight in weights.items()}


def wrong_sum(name: str, total: float) -> str:
    """Say that numbers must sum to 1. Twelve digits show what is missing without the noise of binary fractions."""
    return f"{name} must sum to 1.0, got {float(f'{total:.12g}')}"


def plain_integers(value: Any) -> Any:
    """Return plain data with the integers of NumPy as Python integers; tuples become lists."""

    def plain(leaf: Any) -> Any:
        is_integer = not isinstance(leaf, bool) and isinstance(leaf, Integral)
        return index(leaf) if is_integer else leaf

    return mapped(value, plain)


def parse_size(value: int | str) -> int:
    """Return a size in bytes, at least 1; a fraction of a byte is cut off.

    Raises:
        ConfigError: `value` is not a size, or is below one byte or above 2**63 - 1 bytes.
    """
    size: object = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = int(Decimal(match[1]) * 1024 ** _UNITS.index((match[2] or " ").lower()))
    if not isinstance(size, int) or isinstance(size, bool):
        raise ConfigError(
            f"got {value!r}: a size must be a whole number of bytes or a text like '500MB', '1.5 GB' or "
            "'1GiB' (units B, KB, MB, GB, TB, PB, all powers of 1024)"
        )
    if not 1 <= size <= _LARGEST:
        raise ConfigError(f"got {value!r}: a size must be between 1 and {_LARGEST} bytes", got=value)
    return size


def parse_duration(value: float | str) -> float:
    """Return a span in seconds; a bare number is in seconds and must be 0 where it is text.

    Raises:
        ConfigError: it is no span, is negative, or would have to be guessed (``"7"``).
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str):
        if value.strip() == "0":
            return 0.0
        if match := _DURATION.fullmatch(value):
            return float(match[1]) * _SECONDS[match[2]]
    raise ConfigError(
        f"got {value!r}: a span of time must be 0 or a number with a unit, such as 7d, 12h, 30m or 90s",
        got=value,
    )


def _plain(word: object) -> str:
    return str(word).casefold().replace("-", "_").replace(" ", "_")


Options = TypeVar("Options", bound="DataclassInstance")


def arguments_of(kind: type[Options], name: str, asked: Any, words: Mapping[str, Options]) -> Options:
    """Read an option: an instance, one of `words`, or a mapping of arguments; ConfigError where it is none of these."""
    if isinstance(asked, kind):
        return asked
    if isinstance(asked, str) and asked in words:
        return words[asked]
    names = [field.name for field in fields(kind)]
    if not isinstance(asked, Mapping) or not all(each in names for each in cast("Mapping[str, Any]", asked)):
        others = "".join(f"{word!r}, " for word in words)
        raise ConfigError(
            f"{name}: got {asked!r}, must be {others}a {kind.__name__}, or a mapping of {', '.join(names)}"
        )
    return kind(**cast("Mapping[str, Any]", asked))


STORE_VARIABLE: Final = "TOKENLAKE_STORE"
DEFAULT_STORE: Final = "./artifacts"

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs"})
"""Schemes of the object stores that a build can write to."""

STORE_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/]*)(.*)", re.DOTALL)


def default_store(environ: Mapping[str, str] = os.environ) -> str:
    """Return the store of configurations and commands that name none."""
    return environ.get(STORE_VARIABLE) or DEFAULT_STORE


def is_local(store: str) -> bool:
    """Whether a store is a folder of this machine."""
    return scheme_of(store) in ("", "file")


def store_overrides(store: str) -> list[str]:
    """Return overrides that put another store in a configuration; options of an object store are no folder's."""
    options = ["save.storage_options=null"] if is_local(store) else []
    return [*options, f"save.output_dir={json.dumps(store)}"]


def scheme_of(store: str) -> str:
    """Return the scheme of a URL in lower case, "" for a path."""
    found = STORE_URL.match(store)
    return found[1].lower() if found else ""


Format = Literal["jsonl", "json", "parquet", "arrow", "csv", "tsv", "text"]
SourceType = Literal["jsonl", "json", "parquet", "arrow", "csv", "text", "hub"]
"""What a source's files hold; ``hub``: `data_files` are ids of datasets on the Hub."""
TypeName = Literal["json", "jsonl", "parquet", "csv", "arrow", "huggingface", "hf", "txt"]
"""The same as people write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """What is known of a format before a file is opened.

    Attributes:
        extensions: of files that hold it.
        reader: module of :mod:`tokenlake.sources` and function.
        layout: ``lines`` (any line can be found from any byte), ``blocks`` (a footer lists them), ``whole`` (read from
            the beginning on).
        schema: whether a file itself says what its columns are.
        nested: whether a field can hold a list.
        least_record_bytes: no record that holds anything is shorter, its separator included; None where bytes tell
            nothing.
        prose: further extensions, of files that a directory holds beside data: taken where the type is set, or by name.
    """

    extensions: tuple[str, ...]
    reader: tuple[str, str]
    layout: Literal["lines", "blocks", "whole"]
    schema: bool = False
    nested: bool = True
    least_record_bytes: int | None = None
    prose: tuple[str, ...] = ()

    @property
    def textual(self) -> bool:
        """Whether it is plain text to look at, which may be compressed as a whole."""
        return self.layout != "blocks"


_CSV: Final = FormatFacts(
    extensions=(".csv",),
    reader=("csv", "read_csv"),
    layout="whole",
    schema=True,
    nested=False,
    least_record_bytes=1,  # one empty cell: its newline
)

FORMATS: Final[dict[Format, FormatFacts]] = {
    "jsonl": FormatFacts(
        extensions=(".jsonl", ".ndjson"),
        reader=("json", "read_jsonl"),
        layout="lines",
        least_record_bytes=2,  # a digit, which is a bad record, and its newline
    ),
    "json": FormatFacts(
        extensions=(".json",), reader=("json_array", "read_json_array"), layout="whole", least_record_bytes=2
    ),
    "parquet": FormatFacts(
        extensions=(".parquet",), reader=("parquet", "read_parquet"), layout="blocks", schema=True
    ),
    "arrow": FormatFacts(
        extensions=(".arrow", ".feather", ".ipc", ".arrows"),
        reader=("arrow", "read_arrow"),
        layout="blocks",
        schema=True,
    ),
    "csv": _CSV,
    "tsv": replace(_CSV, extensions=(".tsv",)),
    "text": FormatFacts(
        extensions=(".txt",),
        prose=(".text", ".md", ".rst"),
        reader=("plain_text", "read_text"),
        layout="lines",
        nested=False,
        least_record_bytes=2,
    ),
}
TYPES: Final[dict[TypeName, SourceType]] = {
    "jsonl": "jsonl",
    "json": "json",
    "parquet": "parquet",
    "arrow": "arrow",
    "csv": "csv",
    "txt": "text",
    "huggingface": "hub",
    "hf": "hub",
}


_GOPHER: Final = "Rae et al. 2021, https://arxiv.org/abs/2112.11446, section A.1.1"
_TABLE_A1: Final = "Rae et al. 2021, https://arxiv.org/abs/2112.11446, table A1"
_C4: Final = "Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.2"
_C4_CODE: Final = "c4_utils.py of TensorFlow Datasets, which made C4"
_FINEWEB: Final = "Penedo et al. 2024, https://arxiv.org/abs/2406.17557, section 3.6"
_FINEWEB_CODE: Final = "FineWeb's filter in datatrove"

CONSTANTS: Final[Mapping[str, Mapping[str, tuple[float, str]]]] = {
    "gopher_repetition": {
        "max_repeated_paragraphs": (0.30, _TABLE_A1),
        "max_in_repeated_paragraphs": (0.20, _TABLE_A1),
        "max_repeated_lines": (0.30, _TABLE_A1),
        "max_in_repeated_lines": (0.20, _TABLE_A1),
        "max_in_top_2gram": (0.20, _TABLE_A1),
        "max_in_top_3gram": (0.18, _TABLE_A1),
        "max_in_top_4gram": (0.16, _TABLE_A1),
        "max_in_repeated_5grams": (0.15, _TABLE_A1),
        "max_in_repeated_6grams": (0.14, _TABLE_A1),
        "max_in_repeated_7grams": (0.13, _TABLE_A1),
        "max_in_repeated_8grams": (0.12, _TABLE_A1),
        "max_in_repeated_9grams": (0.11, _TABLE_A1),
        "max_in_repeated_10grams": (0.10, _TABLE_A1),
    },
    "gopher_quality": {
        "min_words": (50, _GOPHER),
        "max_words": (100_000, _GOPHER),
        "min_word_length": (3, _GOPHER),
        "max_word_length": (10, _GOPHER),
        "max_symbols": (0.1, _GOPHER),
        "max_bullet_lines": (0.9, _GOPHER),
        "max_ellipsis_lines": (0.3, _GOPHER),
        "min_alphabetic": (0.8, _GOPHER),
        "min_stop_words": (2, _GOPHER),
    },
    "c4": {
        "line_ends": (1, _C4),
        "min_line_words": (3, _C4),
        "min_sentences": (5, _C4),
        "max_word_length": (1000, _C4_CODE),
    },
    "fineweb": {
        "min_line_ends": (0.12, _FINEWEB),
        "max_short_lines": (0.67, _FINEWEB),
        "short_line": (30, _FINEWEB),
        "max_in_repeated_lines": (0.01, _FINEWEB_CODE),
        "max_newlines_per_word": (0.3, _FINEWEB_CODE),
    },
}
"""Filter -> constant -> (value, source). ``line_ends`` of C4 is 1 where lines must end as sentences do, else 0: FineWeb
has it 0. The paper of FineWeb has 0.1 of the characters in repeated lines, its code, which made the data, 0.01."""

QualityFilters: TypeAlias = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
"""(name of a filter, (constant, value) that is to be another than the published one), in order."""
