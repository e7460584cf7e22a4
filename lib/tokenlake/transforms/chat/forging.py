"""Special tokens inside a row's own text: spelled out there, they would become control ids and forge a turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.templates.assembling import REASON, texts_in
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.tokenizers.reference import Reference
from tokenlake.tokenizers.special import SpecialScan


@final
class ForgeryScan:
    """Finds values that hold the text of a special token anywhere: contents, names, tool calls, definitions, keys.

    Args:
        tokens: texts of the special tokens.
        normalize: what the tokenizer does to a text before it looks for some of them; None where it does not.
    """

    def __init__(self, tokens: Sequence[str], normalize: Callable[[str], str] | None = None) -> None:
        spelled = {*tokens, *(map(normalize, tokens) if normalize else ())}
        longest_first = sorted(filter(None, spelled), key=lambda token: (-len(token), token))
        self.scan: Final = SpecialScan(longest_first)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._normalize = normalize

    @property
    def normalizes(self) -> bool:
        """Whether texts must be looked at as the tokenizer normalizes them, too, so that `scan` alone is not enough."""
        return self._normalize is not None

    @classmethod
    def of(cls, files: TokenizerFiles) -> Self:
        """Return a scan for a tokenizer's special tokens."""
        normalized = any(token.get("special") and token.get("normalized") for token in files.added_tokens)
        if not normalized or files.spec.get("normalizer") is None:
            return cls(files.special_tokens)
        normalizer: Any = Reference(files).backend.normalizer
        return cls(files.special_tokens, normalizer.normalize_str)

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return {index: why} of the values that cannot be used, also those that are no valid Unicode."""
        strings: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            before = len(strings)
            strings += self._texts_in(value)
            owners += [index] * (len(strings) - before)
        try:
            rows, _ = self.scan.count(pa.array(strings, pa.large_string()))
        except UnicodeEncodeError:
            return self._one_by_one(strings, owners)
        found: dict[int, Fault] = {}
        for row in np.asarray(rows).tolist():
            found.setdefault(owners[row], self._forged(strings[row]))
        return found

    def _texts_in(self, value: Any) -> Sequence[str]:
        texts = texts_in(value)
        return texts if self._normalize is None else [*texts, *map(self._normalize, texts)]

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
