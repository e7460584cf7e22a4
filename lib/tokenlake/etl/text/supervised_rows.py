"""Rows of supervised fine-tuning, for a trainer that tokenizes while it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, final

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.labeller import ANY_LENGTH, Labeller, prompt_labeller, resolved_prompt
from tokenlake.etl.text.transform import Transform
from tokenlake.etl.tokenizers.files import files_of


@final
class SupervisedRows(Transform):
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` (lists of ints) of a row, for supervised fine-tuning.

    A row has a conversation (``messages``, ``conversations`` or ``conversation``), which the tokenizer's chat template
    renders, or a prompt and its completion, or a text. A conversation gives what an unpacked build makes of it.

    Args:
        tokenizer: a Hub id, a folder, a file, files that were read already, or a fast tokenizer of transformers.
        max_length: most ids of a row, whose end is cut; None: any number.
        text_field: of rows that are plain text, all of which bears loss.
        messages_field: of the conversation; None: one of the three.
        mask_prompt: labels are -100 on all but what the assistant says, or the completion; False: on nothing but BOS.
        add_eos: texts and completions end with EOS; a conversation ends as its template says.
        truncation: False: a row longer than `max_length` is a bad one, and none is cut.
        formatting_func: applied to every row first: returns another row, or its text.
        prompt_field, completion_field: names of the fields of rows without a conversation.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``: it becomes one.

    Raises:
        ConfigError: the tokenizer cannot do what rows need; of a chat template, when the first conversation comes.
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
            raise ConfigError(f"max_length is {max_length}, expected a positive number, or None")
        self._files = files_of(tokenizer)
        self._masked, self._special, self._ends = mask_prompt, special_tokens_in_text, add_eos
        self._format = formatting_func
        self._conversations = MESSAGES_FIELDS if messages_field is None else (messages_field,)
        self._pair, self._text = (prompt_field, completion_field), (text_field,)
        self._options: Final[dict[str, Any]] = {
            "max_length": max_length or ANY_LENGTH,
            "truncation": "simple" if truncation else "none",
        }
        self._labellers: dict[tuple[str, ...], Labeller] = {}

    def __call__(self, example: Row) -> Row:
        """Return the row of the trainer.

        Raises:
            BadRecordError: the row has none of the three, cannot be rendered, or nothing to learn is left of it.
        """
        if self._format is not None:
            made = self._format(example)
            example = {self._text[0]: made} if isinstance(made, str) else made
        kinds = (*((name,) for name in self._conversations), self._pair, self._text)
        names = next((kind for kind in kinds if all(example.get(name) is not None for name in kind)), None)
        if names is None:
            raise BadRecordError(
                f"the row has neither a conversation ({', '.join(self._conversations)}) nor {self._pair[0]!r} and "
                f"{self._pair[1]!r} nor {self._text[0]!r}; its fields are {', '.join(example) or 'none'}",
                reason="missing_field",
            )
        spoken = names[0] in self._conversations
        if names not in self._labellers:
            section: dict[str, Any] = {
                "format_type": "chat",
                "input_columns": names,
                "mask_input": self._masked,
            }
            if not spoken:  # the fields one after the other; the last one of two is what is learned
                answer = {"label_column": names[-1], "mask_input": self._masked} if len(names) > 1 else {}
                template = "".join(f"{{{{ {name} }}}}" for name in names)
                section = {"template": template, "add_eos": self._ends, **answer}
            self._labellers[names] = prompt_labeller(
                resolved_prompt(section), self._files, self._special, **self._options
            )
        label = self._labellers[names]
        row = example if spoken else {name: example[name] for name in names}
        (tokens,) = label.tokens([row])
        return {name: values.tolist() for name, values in label.fitted(0, tokens).example().items()}


SFTPreprocessTransform: Final = partial(SupervisedRows, mask_prompt=False)
"""As :class:`SupervisedRows`; nothing but BOS is masked, unless ``mask_prompt=True``."""
