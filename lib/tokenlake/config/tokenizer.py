"""Which tokenizer, and how it treats one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

from pydantic import WrapValidator

from tokenlake.config.explain import problem, shown
from tokenlake.config.section import Section
from tokenlake.config.values import Length, Path, Switch, as_text

SpecialTokensInText = Literal["literal", "encode", "fail"]
"""What the text of a special token inside a document becomes: plain text, the token, or a bad record."""

LongDocuments = Literal["keep", "truncate", "split", "drop"]
"""What becomes of a document of more than `max_length` tokens."""

TruncationStrategy = Literal["simple", "word", "sentence", "smart"]
"""Where a document is cut: at a token, or between words or sentences; smart: the nicest that keeps 80% of the room."""

TruncationSide = Literal["right", "left"]
"""The side of a document that is cut away."""

DEFAULT_MAX_LENGTH: Final = 2048


class TokenizerConfig(Section):
    """A tokenizer and its options. A plain text in the place of this section is its `name_or_path`."""

    name_or_path: Path
    """Hub id, directory, or tokenizer.json file."""

    max_length: Length | None = None
    """Most tokens of a document, special ones too, unless long ones are kept; null: `tokenize.max_length`."""

    truncation: Switch | None = None
    """Cut documents to `max_length` (accounted); null: no when packing follows, else yes."""

    padding: Literal[False, "max_length", "longest", "do_not_pad"] = False
    """Pad unpacked rows to `max_length`, or to the longest of their row group; packed rows are always full."""

    padding_side: Literal["left", "right"] | None = None
    """Where `padding` puts it; null: as tokenizer_config.json says, else right."""

    add_special_tokens: Switch = True
    """Put the tokenizer's own BOS/EOS around every document."""

    return_attention_mask: Switch = True
    """Store `attention_mask` (1 document, 0 padding) in unpacked rows, where this is written out or rows are padded."""

    trust_remote_code: Switch = False
    """Allow code of the tokenizer's repository to run; a build reads tokenizer.json and never runs any."""


def _tokenizer(value: object, _handler: object) -> str | TokenizerConfig:
    if isinstance(value, TokenizerConfig):
        return value
    if isinstance(value, Mapping):
        return TokenizerConfig.model_validate(dict(cast("Mapping[str, Any]", value)))
    text = as_text(value)
    if isinstance(text, str) and text and "\x00" not in text:
        return text
    raise problem(f"got {shown(value)}, must be a Hub id, a path, or a mapping with `name_or_path`")


TokenizerChoice = Annotated[str | TokenizerConfig, WrapValidator(_tokenizer)]
"""A Hub id or path, or a whole :class:`TokenizerConfig`."""
