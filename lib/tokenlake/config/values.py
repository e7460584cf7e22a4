"""The kinds of values that sections share: counts, fractions, names, sizes, paths, weights.

Numbers and texts are strict: ``seq_length: yes`` or ``"2048"`` is a mistake to report, not one to guess at.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, Strict, StringConstraints, WithJsonSchema

from tokenlake.config.section import problem, shown
from tokenlake.config.sizes import PATTERN, parse_size
from tokenlake.errors import ConfigError

_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1

DATASET_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
"""Names of datasets in a store."""


def _index(value: object) -> object:
    """Let NumPy integers in as the ints they are; bool stays bool and is refused by Strict."""
    if isinstance(value, bool | int) or not hasattr(value, "__index__"):
        return value
    return operator.index(cast("Any", value))


def _size(value: object) -> int:
    try:
        return parse_size(cast("Any", _index(value)))
    except ConfigError as error:
        raise problem(str(error)) from None


def as_text(value: object) -> object:
    """Return a path object as text, and anything else as it is."""
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value


# The validator stands last and so runs first, before the strict check; the JSON Schema needs this order too.
_Index = BeforeValidator(_index)
Count = Annotated[int, Strict(), Gt(0), Le(_INT64), _Index]
"""A number of things, at least one."""
Length = Annotated[int, Strict(), Gt(0), Le(_INT32), _Index]
"""A number of tokens, at least one."""
TokenId = Annotated[int, Strict(), Ge(0), Le(_INT32), _Index]
Seed = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
"""A seed; 0 is one like any other."""
Step = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
Switch = Annotated[bool, Strict()]
Fraction = Annotated[float, Strict(), Ge(0.0), Le(1.0)]
Positive = Annotated[float, Strict(), Gt(0.0)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]


def _spelled(pattern: str, words: str, *, quote: bool = True) -> Any:
    """Return the type of texts that match `pattern`, which a message describes by `words`."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise problem(f"got {shown(value)}, must be {words}" if quote else f"must be {words}")
        return value

    return Annotated[
        str, Strict(), AfterValidator(check), WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})
    ]


_NAME_WORDS: Final = "letters, digits, '.', '_' and '-', a letter or digit first, at most 64 in all"

if TYPE_CHECKING:
    Path = DatasetName = SourceName = SplitName = VariableName = Character = StoredName = str
else:
    Path = Annotated[_spelled(r"[^\x00]+", "a path or URL, not empty"), BeforeValidator(as_text)]
    DatasetName = _spelled(DATASET_NAME, f"a name of lower-case {_NAME_WORDS}")
    StoredName = _spelled(
        DATASET_NAME + r"(@v?[1-9][0-9]{0,8})?", "a dataset of the store: NAME, or NAME@v3 for one version"
    )
    SourceName = _spelled(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", f"a name of {_NAME_WORDS}")
    SplitName = _spelled(
        r"[A-Za-z][A-Za-z0-9_]{0,31}", "a split name of letters, digits and '_', a letter first"
    )
    # Somebody may write the secret itself where its name belongs.
    Character = _spelled(r"[^\x00\r\n\"]", "one character, no quote and no end of line")
    VariableName = _spelled(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", quote=False)

Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": PATTERN}]}),
]
"""A number of bytes, written as an int or as ``"500MB"`` (see :mod:`tokenlake.config.sizes`)."""


def total_is_one(name: str, numbers: Iterable[float]) -> None:
    """Raise unless `numbers` sum to 1 within 1e-6."""
    total = math.fsum(numbers)
    if abs(total - 1.0) > 1e-6:
        # Twelve digits: enough to see what is missing, without the noise of binary fractions.
        raise problem(f"{name} must sum to 1.0, got {float(f'{total:.12g}')}")


def _weights(value: dict[str, float]) -> dict[str, float]:
    total_is_one("Weights", value.values())
    return value


def _splits(value: dict[str, float]) -> dict[str, float]:
    total_is_one("Splits", value.values())
    return value


Weights = Annotated[dict[SourceName, Annotated[float, Strict(), Ge(0.0)]], AfterValidator(_weights)]
"""Dataset name to weight; the weights sum to 1."""
Splits = Annotated[dict[SplitName, Annotated[Positive, Le(1.0)]], AfterValidator(_splits)]
"""Split name to the fraction of documents it gets; the fractions sum to 1."""


def _data_files(value: object) -> object:
    files = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    texts = [as_text(item) for item in files]
    for item in texts:
        if not isinstance(item, str) or not item or "\x00" in item:
            raise problem(f"got {shown(item)}, must be a path, glob, directory or URL, or a list of them")
    if not texts:
        raise problem("got an empty list, must be a path, glob, directory or URL, or a list of them")
    return tuple(texts) if isinstance(value, list | tuple) else texts[0]


DataFiles = Annotated[str | tuple[str, ...], BeforeValidator(_data_files)]
"""One path, glob, directory or URL, or several; a list becomes a tuple."""


def nothing_means_defaults(value: object) -> object:
    """Read an empty YAML section (``mix:`` with every line commented out) as one of defaults."""
    return cast("Mapping[str, Any]", {}) if value is None else value
