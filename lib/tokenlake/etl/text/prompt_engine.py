""":class:`PromptEngine`: rows become ids, attention mask and labels, one by one or as a padded batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, final

import numpy as np

from tokenlake.base.arrays import Int32, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.base.result import Err, Ok, Result, attempt
from tokenlake.config.stages import TokenizerConfig
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.budgets import BudgetStrategy
from tokenlake.etl.text.cut import CutCount, CutCounter
from tokenlake.etl.text.labeller import (
    ANY_LENGTH,
    EXAMPLE_COLUMNS,
    ProcessedExample,
    bad_row,
    prompt_labeller,
    resolved_prompt,
)
from tokenlake.etl.text.lengths import LengthManager
from tokenlake.etl.text.padding import pad
from tokenlake.etl.text.truncation import SIDES, STRATEGIES, Side, Strategy
from tokenlake.etl.tokenizers.encoder import SPECIAL_TOKENS_IN_TEXT
from tokenlake.etl.tokenizers.files import TokenizerFiles, files_of

Padding = Literal["max_length", "longest", "do_not_pad"] | bool

_PADDING: Final[dict[object, Any]] = {True: "longest", False: "do_not_pad"}
_PADDINGS: Final = ("max_length", "longest", "do_not_pad", True, False)

_TRIES: Final = 8  # tokens merge differently in a shorter text, so that the first try may miss by a few


@final
class PromptEngine:
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` of a row; labels are -100 on prompt and padding.

    The prompt is rendered as a whole, tokenized as a whole, and a token bears loss if it holds a byte of the answer,
    or is the EOS after it. ::

        engine = PromptEngine({"template": "Q: {q}\\nA: {a}", "label_column": "a"}, "meta-llama/Llama-2-7b-hf")
        example = engine.process({"q": "2 + 2?", "a": "4"}).unwrap()

    Args:
        config: the section `prompt` (``prompt_template`` in the second system's files).
        tokenizer: Hub id, directory, tokenizer.json file, or its files; a `TokenizerConfig` also names other special
            tokens.
        max_length: most tokens of a row, special ones included.
        truncation: cut what is longer, by one of the strategies of :mod:`tokenlake.etl.text.truncation`; True is
            ``simple``; False and ``none`` make it an error.
        truncation_side: ``right``: the end goes, and the EOS that is put there bears no loss; ``left``: the beginning.
        padding: ``max_length``, ``longest`` of a batch (True), ``do_not_pad`` (False).
        padding_side: where padding goes.
        special_tokens_in_text: ``literal``, ``encode`` or ``fail``, as in a build.
        budget, ratios, priority: where a row is too long, its input columns are shortened first, by these shares (see
            :func:`tokenlake.etl.text.budgets.allocate`), so that the answer is not what is cut; None: the end is.

    Raises:
        ConfigError: the configuration is wrong, or does not fit the tokenizer.
    """

    def __init__(
        self,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles | TokenizerConfig,
        *,
        max_length: int = 2048,
        truncation: Strategy | bool = True,
        truncation_side: Side = "right",
        padding: Padding = "max_length",
        padding_side: Side = "right",
        special_tokens_in_text: Literal["literal", "encode", "fail"] = "literal",
        budget: BudgetStrategy | None = None,
        ratios: Mapping[str, float] | None = None,
        priority: Sequence[str] | None = None,
    ) -> None:
        for name, value, allowed in (
            ("padding", padding, _PADDINGS),
            ("padding_side", padding_side, SIDES),
            ("truncation", truncation, (True, False, *STRATEGIES)),
            ("truncation_side", truncation_side, SIDES),
            ("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT),
        ):
            require_one_of(name, value, allowed)
        files = files_of(tokenizer)
        prompt = resolved_prompt(config)
        if max_length < 1:
            told = f"max_length is {max_length}, expected a positive number"
            raise ConfigError(
                told, field_path="max_length", expected="a positive number", got=repr(max_length)
            )
        if budget is not None and prompt.conversation:
            told = "budget: shortens the texts of columns, but the rows are conversations; leave it out"
            raise ConfigError(told, field_path="budget", expected="None", got=budget)
        strategy: Strategy = truncation if isinstance(truncation, str) else "simple" if truncation else "none"
        self._label = prompt.label_column or ""
        self._labeller = prompt_labeller(
            prompt,
            files,
            special_tokens_in_text,
            max_length=max_length,
            truncation=strategy,
            truncation_side=truncation_side,
        )
        self._padding: Any = _PADDING.get(padding, padding)
        self._padding_side: Side = padding_side
        # Padding is masked, so that any id will do where a tokenizer names none.
        self._pad_id = 0 if files.fill_id is None else files.fill_id
        used = self._labeller.renderer.columns or prompt.input_columns
        self._shortened_columns = tuple(name for name in used if name != prompt.label_column)
        self.shortened = 0
        """Rows of this process whose columns were shortened so far."""
        self._lengths: LengthManager | None = None
        if budget is not None:
            self._lengths = LengthManager(
                files,
                max_length=ANY_LENGTH,
                truncation="simple" if strategy == "none" else strategy,
                truncation_side=truncation_side,
                budget=budget,
                ratios=ratios,
                priority=priority,
                add_special_tokens=False,
            )
            self._lengths.fit(dict.fromkeys(self._shortened_columns, ""), 0)  # are shares and columns right?

    @classmethod
    def from_config(
        cls,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles | TokenizerConfig,
        **options: Any,
    ) -> Result[Self, TokenlakeError]:
        """Return the engine, or what is wrong with its configuration."""
        return attempt(lambda: cls(config, tokenizer, **options))

    @property
    def max_length(self) -> int:
        """Most tokens of a row, special ones included."""
        return self._labeller.max_length

    @property
    def cut(self) -> CutCounter:
        """What was cut from the rows of this process so far, shortened columns too."""
        return self._labeller.cut

    def process(self, row: Mapping[str, Any]) -> Result[ProcessedExample, TokenlakeError]:
        """Return ``input_ids``, ``attention_mask`` and ``labels`` of a row, int32[L] each.

        The error says ``field_path`` (the column), ``expected`` and ``got``.
        """
        return self.process_batch([row]).map(
            lambda batch: ProcessedExample({name: values[0] for name, values in batch.items()})
        )

    def process_batch(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> Result[dict[str, Int32] | dict[str, list[Any]], TokenlakeError]:
        """Return the rows as one batch: int32[n, L] each; unpadded, lists of n arrays.

        The first row that cannot be used makes the whole an error. Its details are ``row``, its index, and ``problem``,
        the message without it.
        """
        label, checked = self._labeller, list[Row]()
        try:
            for index, row in enumerate(rows):
                if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                    kind = type(row).__name__
                    raise bad_row(index, "", f"the row is a {kind}", "a mapping of columns", kind)
                checked.append(dict(row))
            if self._lengths is not None:
                checked = [self._shortened(self._lengths, row) for row in checked]
            made = [label.fitted(at, tokens, self._label) for at, tokens in enumerate(label.tokens(checked))]
        except BadRecordError as error:
            details = {**error.details, "problem": str(error)}
            return Err(BadRecordError(f"row {error.details['row']}: {error}", **details))
        except TokenlakeError as error:
            return Err(error)
        if self._padding == "do_not_pad" or not made:
            examples = [tokens.example() for tokens in made]
            return Ok({name: [example[name] for example in examples] for name in EXAMPLE_COLUMNS})
        ids = np.concatenate([tokens.ids for tokens in made])
        (padded,) = pad(
            Ragged(ids, offsets_of([len(tokens.ids) for tokens in made])),
            pad_id=self._pad_id,
            strategy=self._padding,
            side=self._padding_side,
            max_length=label.max_length,
            loss=np.concatenate([tokens.loss for tokens in made]),
        )
        return Ok({name: getattr(padded, name) for name in EXAMPLE_COLUMNS})

    def _shortened(self, lengths: LengthManager, row: Row) -> Row:
        """Shorten the input columns of a row that is too long; as it is where that is not enough."""
        over = self._over(row)
        # A column without text keeps its place in ratios and priorities.
        found = {name: row.get(name) for name in self._shortened_columns}
        texts = {name: value if isinstance(value, str) else "" for name, value in found.items()}
        if over <= 0 or not any(texts.values()):
            return row
        before = int(lengths.count(list(texts.values())).sum())
        total = before
        for _ in range(_TRIES):
            total -= over
            if total < 0:
                break
            cut = lengths.fit(texts, total)
            short = {**row, **{name: each.text for name, each in cut.items() if texts[name]}}
            over = self._over(short)
            if over <= 0:
                # The row is counted again when it is fitted, without what is gone by then.
                dropped = before - total
                self.shortened += 1
                self._labeller.cut.add(CutCount(cut=1, tokens=dropped, dropped=dropped))
                return short
        return row

    def _over(self, row: Row) -> int:
        """Return how many tokens a row has too many."""
        (tokens,) = self._labeller.tokens([row])
        return self._labeller.length(tokens) - self._labeller.max_length
