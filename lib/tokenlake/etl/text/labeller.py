"""The ids and labels of one prompt and its answer: rendered, tokenized whole, framed by BOS and EOS, and cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from tokenlake.base.arrays import Bools, Int32
from tokenlake.base.columns import IGNORED
from tokenlake.base.section import path_of
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.cut import CutCount, CutCounter
from tokenlake.etl.text.prompt_renderer import check_end, open_prompt
from tokenlake.etl.text.renderer import Renderer
from tokenlake.etl.text.truncation import Side, Strategy, truncate
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles

EXAMPLE_COLUMNS: Final = ("input_ids", "attention_mask", "labels")

ANY_LENGTH: Final = 1 << 30

_EXPECTED: Final = {
    "null_column": "a value in every column of the template",
    "not_a_string": "text, a number or a boolean",
    "empty_label": "an answer that is not empty",
    "special_token_in_text": "text without special tokens",
    "invalid_utf8": "whole characters",
}


@final
class ProcessedExample(dict[str, Int32]):
    """A row as a trainer takes it: ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each, by key or name."""

    @property
    def input_ids(self) -> Int32:
        """The ids, int32[L]."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Int32:
        """1 for the row's own ids, 0 for padding: int32[L]."""
        return self["attention_mask"]

    @property
    def labels(self) -> Int32:
        """The ids where they bear loss, -100 elsewhere: int32[L]."""
        return self["labels"]

    @property
    def input_length(self) -> int:
        """The number of ids before the first that bears loss, without padding."""
        own = self["labels"][self["attention_mask"] == 1]
        learned = np.flatnonzero(own != IGNORED)
        return int(learned[0]) if len(learned) else len(own)


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one text, int32[k], which of them bear loss, bool[k], and the text, large_string[1]."""

    ids: Int32
    loss: Bools
    text: pa.LargeStringArray

    def example(self) -> ProcessedExample:
        """Return input_ids, attention_mask and labels, int32[k] each."""
        labels = np.where(self.loss, self.ids, np.int32(IGNORED))
        return ProcessedExample(zip(EXAMPLE_COLUMNS, (self.ids, np.ones_like(self.ids), labels), strict=True))


@final
class Labeller:
    """Makes ids and labels of rows: what a renderer makes of them, tokenized whole, framed by BOS and EOS, and cut.

    Args:
        special_tokens_in_text: ``encode``: special tokens that a text spells become control ids; they do in any case
            where the renderer's own are to.
        max_length: most tokens, all special ones included.
        truncation, truncation_side: how and where what is too long is cut; ``none`` makes it an error.
        bos: whether a text begins with the tokenizer's prefix. What it spells itself is not put there again.
        suffix: what it ends with; None: the tokenizer's suffix.
        eos_id: what the suffix ends with in any case.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        renderer: Renderer,
        special_tokens_in_text: str,
        *,
        max_length: int,
        truncation: Strategy = "simple",
        truncation_side: Side = "right",
        bos: bool = True,
        suffix: tuple[int, ...] | None = None,
        eos_id: int | None = None,
    ) -> None:
        mode = "encode" if renderer.control_tokens or special_tokens_in_text == "encode" else "literal"
        self.encoder: Final = Encoder(
            files, engine="tokenizers", special_tokens_in_text=mode, sample_rate=0.0
        )
        self.renderer: Final = renderer
        self._prefix = self.encoder.prefix if bos else ()
        after = self.encoder.suffix if suffix is None else suffix
        self._suffix = after if eos_id is None or after[-1:] == (eos_id,) else (*after, eos_id)
        self.max_length: Final = max_length
        self.cut: Final = CutCounter("prompts", max_length)
        self._truncation: tuple[Strategy, Side] = (truncation, truncation_side)

    def tokens(self, rows: list[Row]) -> list[Tokens]:
        """Return the ids of rows, as many as there are; BadRecordError names the first that cannot be used."""
        made = self.renderer.render(Rows(objects=rows))
        if made.bad:
            index, fault = made.bad[0]
            raise _unusable(index, rows[index], fault)
        if not rows:
            return []
        assert made.spans is not None
        encoded, loss = self.encoder.encode_spans(made.text, made.spans)
        edges = encoded.offsets[1:-1]
        pairs = zip(np.split(encoded.ids, edges), np.split(loss, edges), strict=True)
        return [Tokens(*pair, made.text.slice(at, 1)) for at, pair in enumerate(pairs)]

    def length(self, tokens: Tokens) -> int:
        """Return how many tokens a text has with what is put around it."""
        before, after = self._lacking(tokens.ids)
        return len(before) + len(tokens.ids) + len(after)

    def fitted(self, index: int, tokens: Tokens, column: str = "") -> Tokens:
        """Return a whole text of at most `max_length` tokens.

        On the side where it is cut, what it spelled itself is gone, and is put there; an EOS after half an answer
        bears no loss: nobody is to learn to stop there.

        Raises:
            BadRecordError: it is too long and may not be cut, or no token to learn is left of row `index`.
        """
        before, after = self._lacking(tokens.ids)
        ids, loss, whole = tokens.ids, tokens.loss, self.length(tokens)
        ends = bool(loss.any())
        if whole > self.max_length:
            if self._truncation[0] == "none":
                told = f"the prompt has {whole} tokens, max_length is {self.max_length} and truncation is off"
                raise bad_row(
                    index, "max_length", told, f"at most {self.max_length} tokens", whole, reason="too_long"
                )
            if self._truncation[1] == "right":
                ends, after = False, self._suffix
            else:
                before = self._prefix
            room = max(0, self.max_length - len(before) - len(after))
            _, start, stop = self.encoder.encode_places(tokens.text)
            cut = truncate(str(tokens.text[0].as_py()), start, stop, room, *self._truncation)
            ids, loss = ids[cut.first : cut.last], loss[cut.first : cut.last]
            ends = ends and bool(loss.any())
        ids = np.concatenate([np.array(before, np.int32), ids, np.array(after, np.int32)])
        loss = np.concatenate([np.zeros(len(before), np.bool_), loss, np.full(len(after), ends)])
        made = Tokens(ids[: self.max_length], loss[: self.max_length], tokens.text)
        if made.loss.any():
            dropped = whole - len(made.ids)
            self.cut.add(CutCount(documents=1, cut=int(dropped > 0), tokens=whole, dropped=dropped))
            self.cut.judge(is_end=False)
            return made
        told = f"no token to learn is left of {whole}, max_length is {self.max_length}"
        told = f"{told}: raise it, shorten the prompt, or leave such rows out"
        reason = "too_long" if whole > self.max_length else "nothing_to_learn"
        raise bad_row(index, column, told, "at least one token to learn", 0, reason=reason)

    def _lacking(self, ids: Int32) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, after = self._prefix, self._suffix
        begins = tuple(ids[: len(before)].tolist()) == before
        ends = bool(after) and tuple(ids[-len(after) :].tolist()) == after
        return () if begins else before, () if ends else after


def _unusable(index: int, row: Row, fault: Fault) -> BadRecordError:
    column = fault.column
    got = repr(row[column]) if column in row else f"columns {', '.join(map(repr, row)) or 'none'}"
    return bad_row(index, column, fault.detail, _EXPECTED.get(fault.reason, ""), got, reason=fault.reason)


def resolved_prompt(config: PromptConfig | Mapping[str, Any]) -> ResolvedPrompt:
    """Return a section `prompt` worked out.

    Raises:
        ConfigError: it is wrong.
    """
    if not isinstance(config, PromptConfig):
        try:
            config = PromptConfig.model_validate(dict(config))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(("prompt", path_of(first["loc"]))).rstrip(".")
            raise ConfigError(
                f"{path}: {first['msg']}", field_path=path, expected=first["msg"], got=repr(first["input"])
            ) from None
    return ResolvedPrompt(**config.model_dump())


def prompt_labeller(
    prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str, **options: Any
) -> Labeller:
    """Return the labeller of prompts; `options` as :class:`Labeller` has them.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an answer would have no end.
    """
    check_end(prompt, files, files.eos_id)
    renderer = open_prompt(prompt, files, special_tokens_in_text)
    suffix: tuple[int, ...] | None = () if not prompt.add_eos else None
    if prompt.add_eos and prompt.format_type != "chat":  # a chat ends its answer itself
        options["eos_id"] = files.eos_id
    return Labeller(files, renderer, special_tokens_in_text, bos=prompt.add_bos, suffix=suffix, **options)


def bad_row(
    index: int, column: str, what: str, expected: str, got: object, *, reason: str = "prompt"
) -> BadRecordError:
    return BadRecordError(what, row=index, field_path=column, expected=expected, got=got, reason=reason)
