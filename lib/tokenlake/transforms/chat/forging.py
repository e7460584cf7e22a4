"""Special tokens inside a row's own text: spelled out there, they would become control ids and forge a turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.tokenizers.special import SpecialScan

REASON = "special_token_in_text"


@final
class ForgeryScan:
    """Finds values that hold the text of a special token anywhere: contents, names, tool calls, definitions, keys."""

    def __init__(self, files: TokenizerFiles) -> None:
        tokens = sorted({token for token in files.special_tokens if token}, key=lambda token: -len(token))
        self._scan = SpecialScan(tokens)
        self._tokens = re.compile("|".join(map(re.escape, tokens)) or "(?!)")

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return {index: why} of the values that cannot be used, also those that are no valid Unicode."""
        strings: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            before = len(strings)
            strings += texts_in(value)
            owners += [index] * (len(strings) - before)
        try:
            rows, _ = self._scan.count(pa.array(strings, pa.large_string()))
        except UnicodeEncodeError:
            return self._one_by_one(strings, owners)
        found: dict[int, Fault] = {}
        for row in np.asarray(rows).tolist():
            found.setdefault(owners[row], self._forged(strings[row]))
        return found

    def _one_by_one(self, strings: list[str], owners: list[int]) -> dict[int, Fault]:
        found: dict[int, Fault] = {}
        for text, owner in zip(strings, owners, strict=True):
            try:
                text.encode()
            except UnicodeEncodeError:
                found.setdefault(owner, Fault("invalid_utf8", "a text holds half of a surrogate pair"))
            if self._tokens.search(text):
                found.setdefault(owner, self._forged(text))
        return found

    def _forged(self, text: str) -> Fault:
        token = self._tokens.search(text)
        spelled = token[0] if token else "one"
        return Fault(
            REASON,
            f"a text of the conversation spells out the special token {spelled!r}, which would become a control "
            "token; take it out, or set special_tokens_in_text: encode to allow it",
        )


def texts_in(value: Any) -> Iterable[str]:
    """Return every string inside plain data, keys of objects among them."""
    found: list[str] = []
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            rest += cast("dict[Any, Any]", item)
            rest += cast("dict[Any, Any]", item).values()
        elif isinstance(item, list | tuple):
            rest += cast("list[Any]", item)
    return found
