"""Rows of supervised fine-tuning, for a trainer that tokenizes while it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, final

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.labeller import (
    ANY_LENGTH,
    Labeller,
    prompt_labeller,
    resolved_prompt,
)
from tokenlake.etl.text.transform import Transform
from tokenlake.etl.tokenizers.files import files_of


@final
class SupervisedRows(Transform):
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` (lists of ints) of a row.

    The rows are for supervised fine-tuning.

    A row has a conversation (``messages``, ``conversations`` or ``conversation``),
    which the tokenizer's chat template renders, or a prompt and its completion, or a
    text. A conversation gives the row of an unpacked build.

    Args:
        tokenizer: Hub id, folder, file, loaded tokenizer files, or a fast tokenizer of
            transformers.
        max_length: Maximum number of ids of a row; a longer one loses its end. None: no
            limit.
        text_field: Field of rows that are plain text, all of which counts toward the
            loss.
        messages_field: Field of the conversation; None: one of the three.
        mask_prompt: True for labels of -100 on all but the assistant's turns, or the
            completion; False for labels of -100 on nothing but BOS.
        add_eos: True to end texts and completions with EOS; a conversation ends as its
            template does.
        truncation: False to make a row longer than `max_length` an error.
        formatting_func: Function that is applied to every row first; it returns another
            row, or its text.
        prompt_field: Field of the prompt, of rows without a conversation.
        completion_field: Field of the completion, of rows without a conversation.
        special_tokens_in_text: Treatment of rows that spell a special token: ``fail``
            refuses them, ``encode`` makes it a control token.

    Raises:
        ConfigError: The tokenizer lacks something that rows need; for a chat template,
            on the first conversation.

    Example:
        >>> import tokenlake as tl
        >>> rows = tl.SupervisedRows("openai-community/gpt2", max_length=32)
        >>> sorted(rows({"prompt": "2 + 2?", "completion": " 4"}))
        ['attention_mask', 'input_ids', 'labels']
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None = None,
        text_field: str = "text",
        messages_field: str | None = None,
        mask_prompt: bool = True,
        add_eos: bool = True,
        truncation: bool = True,
        formatting_func: Callable[[Row], Row | str] | None = None,
        *,
        prompt_field: str = "prompt",
        completion_field: str = "completion",
        special_tokens_in_text: Literal["fail", "encode"] = "fail",
    ) -> None:
        if max_length is not None and max_length < 1:
            raise ConfigError(
                f"max_length is {max_length}, expected a positive number, or None"
            )
        self._files = files_of(tokenizer)
        self._masks_prompt = mask_prompt
        self._adds_eos = add_eos
        self._special_tokens_in_text = special_tokens_in_text
        self._formatting_func = formatting_func
        self._text_field = text_field
        self._pair_fields = (prompt_field, completion_field)
        self._conversation_fields = MESSAGES_FIELDS
        if messages_field is not None:
            self._conversation_fields = (messages_field,)
        # Options of the labellers, of which there is one for each set of fields.
        self._options: Final[dict[str, Any]] = {
            "max_length": max_length or ANY_LENGTH,
            "truncation": "simple" if truncation else "none",
        }
        self._labellers: dict[tuple[str, ...], Labeller] = {}

    def __call__(self, example: Row) -> Row:
        """Return the row for the trainer.

        Raises:
            BadRecordError: The row has none of the three, cannot be rendered, or
                nothing to learn is left of it.
        """
        # 1. The row, as the user's function changes it.
        if self._formatting_func is not None:
            formatted = self._formatting_func(example)
            if isinstance(formatted, str):
                example = {self._text_field: formatted}
            else:
                example = formatted
        # 2. The labeller of its fields, which is opened on their first row.
        fields = self._fields_of(example)
        labeller = self._labellers.get(fields)
        if labeller is None:
            labeller = self._labeller(fields)
            self._labellers[fields] = labeller
        # 3. A conversation may have tools beside it; of other rows only these fields
        #    count.
        row = example
        if fields[0] not in self._conversation_fields:
            row = {field: example[field] for field in fields}
        (tokens,) = labeller.tokens([row])
        columns = labeller.fitted(0, tokens).example()
        return {name: values.tolist() for name, values in columns.items()}

    def _fields_of(self, row: Row) -> tuple[str, ...]:
        """Return the fields of a row that are learned.

        They are a conversation, prompt and completion, or a text.
        """
        for field in self._conversation_fields:
            if row.get(field) is not None:
                return (field,)
        if all(row.get(field) is not None for field in self._pair_fields):
            return self._pair_fields
        if row.get(self._text_field) is not None:
            return (self._text_field,)
        prompt_field, completion_field = self._pair_fields
        raise BadRecordError(
            f"the row has neither a conversation ({', '.join(self._conversation_fields)}) nor {prompt_field!r} and "
            f"{completion_field!r} nor {self._text_field!r}; its fields are {', '.join(row) or 'none'}",
            reason="missing_field",
        )

    def _labeller(self, fields: tuple[str, ...]) -> Labeller:
        """Return the labeller of rows with these fields."""
        section: dict[str, Any]
        if fields[0] in self._conversation_fields:
            section = {
                "format_type": "chat",
                "input_columns": fields,
                "mask_input": self._masks_prompt,
            }
        else:
            # The fields one after the other.
            template = "".join(f"{{{{ {field} }}}}" for field in fields)
            section = {"template": template, "add_eos": self._adds_eos}
            if fields == self._pair_fields:
                section["label_column"] = fields[-1]
                section["mask_input"] = self._masks_prompt
        return prompt_labeller(
            resolved_prompt(section),
            self._files,
            self._special_tokens_in_text,
            **self._options,
        )


SFTPreprocessTransform: Final = partial(SupervisedRows, mask_prompt=False)
"""As :class:`SupervisedRows`; nothing but BOS is masked, unless
``mask_prompt=True``.
"""
