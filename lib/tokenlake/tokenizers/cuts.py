"""Cut a long document without changing its ids, so that the reference's memory stays bounded.

The reference needs about 120 bytes for each byte of a text: 24 GB for a document of 200 MB. In the forms of
the allow-list there is a place where no token can reach across: one space between two ASCII letters.
Byte-level pre-tokenizers put a word's space before the word and never look back; SentencePiece forms mark it
as the word's first character, and where no piece of the vocabulary has the mark inside, no merge crosses it.
Other tokenizers get their documents whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.tokenizers.allowlist import objection
from tokenlake.tokenizers.files import TokenizerFiles

_BORDER: Final = re.compile(rb"[A-Za-z] [A-Za-z]")
_MARK_INSIDE: Final = re.compile("[^\u2581]\u2581")


@final
@dataclass(frozen=True, slots=True)
class CutRule:
    """Cut before the space of a border; drop it where the normalizer prepends one to every piece."""

    drop_space: bool

    def pieces(self, text: pa.Buffer, size: int) -> Iterator[str]:
        """Yield the pieces of a UTF-8 text, each `size` bytes or a little more."""
        view, start = memoryview(text), 0
        while start < len(view):
            found = _BORDER.search(view, start + size)
            stop = found.start() + 1 if found else len(view)
            yield str(view[start:stop], "utf-8")
            start = stop + (self.drop_space and found is not None)


def cut_rule(files: TokenizerFiles, *, literal: bool) -> CutRule | None:
    """Return how documents of a tokenizer can be cut, or None when they cannot."""
    spec = files.spec
    kept = [token["content"] for token in files.added_tokens if not (literal and token.get("special"))]
    if objection(files, literal=literal) is not None or any(" " in content for content in kept):
        return None
    if not spec["model"].get("byte_fallback"):
        return CutRule(drop_space=False)
    pre_tokenizer: dict[str, Any] = spec.get("pre_tokenizer") or {}
    normalizer: dict[str, Any] = spec.get("normalizer") or {}
    if not pre_tokenizer.get("split") and any(_MARK_INSIDE.search(token) for token in spec["model"]["vocab"]):
        return None
    return CutRule(drop_space=normalizer.get("type") == "Sequence")
