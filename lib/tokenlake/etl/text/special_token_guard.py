"""Rows whose own text spells a special token, anywhere in their values.

Spelled out in a conversation, a special token would become a control id and forge a
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, final

from tokenlake.base.arrays import text_of_strings
from tokenlake.base.markup import is_encodable
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.text.chat_messages import texts_in_calls
from tokenlake.etl.text.chat_protocol import FORGED
from tokenlake.etl.text.plain_data import texts_in
from tokenlake.etl.tokenizers.backends import ReferenceBackend
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.files import TokenizerFiles

_BROKEN: Final = Fault("invalid_utf8", "a text contains half of a surrogate pair")


@final
class SpecialTokenGuard:
    """Finds values that spell a special token.

    All texts are read: contents, names, tool calls, definitions and keys.

    Args:
        tokens: Texts of the special tokens; without any, only text that is no valid
            Unicode is found.
        normalize: Normalization of the tokenizer before it looks for some of the
            tokens; None where it has none.
    """

    def __init__(
        self, tokens: Sequence[str] = (), normalize: Callable[[str], str] | None = None
    ) -> None:
        # A text may spell the token as it is written, or as it is normalized.
        spellings = list(tokens)
        if normalize is not None:
            spellings += map(normalize, tokens)
        self.scan: Final = SpecialScan(spellings)
        self._normalize = normalize
        self.normalizes: Final = normalize is not None
        """Whether texts must be scanned in their normalized form, too, so that
        `scan` alone is not enough.
        """

    @classmethod
    def of(cls, files: TokenizerFiles, special_tokens_in_text: str) -> Self:
        """Return the guard for a tokenizer's special tokens.

        Unless the mode is ``fail`` it accepts all of them.
        """
        if special_tokens_in_text != "fail":
            return cls()
        # Only tokens marked so are looked for in normalized text.
        normalized_tokens = [
            token
            for token in files.added_tokens
            if token.get("special") and token.get("normalized")
        ]
        if not normalized_tokens or files.spec.get("normalizer") is None:
            return cls(files.special_tokens)
        return cls(files.special_tokens, ReferenceBackend(files).normalized)

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return the faults of values that cannot be used, by index."""
        # 1. All texts of all values, each with the index of its value.
        texts: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            value_texts = [*texts_in(value), *texts_in_calls(value)]
            if self._normalize is not None:
                value_texts += [self._normalize(text) for text in value_texts]
            texts += value_texts
            owners += [index] * len(value_texts)
        # 2. Texts that are no valid Unicode.
        faults: dict[int, Fault] = {}
        try:
            column = text_of_strings(texts)
        except UnicodeEncodeError:
            for text_index, text in enumerate(texts):
                if not is_encodable(text):
                    faults[owners[text_index]] = _BROKEN
                    texts[text_index] = ""
            column = text_of_strings(texts)
        # 3. Texts that spell a special token.
        spelling_texts, _ = self.scan.count(column)
        for text_index in spelling_texts.tolist():
            token = self.scan.first(texts[text_index])
            detail = (
                f"a text of the conversation contains the special token {token!r}, which would become a control "
                "token; take it out, or set special_tokens_in_text: encode to allow it"
            )
            faults.setdefault(owners[text_index], Fault(FORGED, detail))
        return faults
