"""Rows of ids for preference training, for a trainer that tokenizes while it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from functools import partial
from typing import Any, Final, Literal, final

from tokenlake.base.checks import require_one_of
from tokenlake.base.columns import IGNORED, METHODS, TRAINERS, Method, Trainer
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.preference_ids import Joiner, preference_batch
from tokenlake.etl.text.preference_renderer import (
    PreferenceRenderer,
    settled_preference,
)
from tokenlake.etl.text.transform import ExpandTransform
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import files_of


@final
class PreferenceRows(ExpandTransform):
    """Makes the rows of a preference trainer; they equal those of a build.

    A row gives one row with the ids of its prompt and answers. A pair that is given to
    kto or bco gives two. A row that a length limit leaves out gives none.

    Args:
        method: Training method: dpo, orpo, cpo, reward, kto, bco or grpo.
        tokenizer: Hub id, folder, file, loaded tokenizer files, or a fast tokenizer of
            transformers.
        max_prompt_length: Maximum number of ids of a prompt; a longer one loses its
            beginning, but keeps BOS. None: no limit. Rows for reward hold whole texts
            and take no such limit.
        max_completion_length: Maximum number of ids of an answer; a longer one loses
            its end. None: no limit.
        trainer: Trainer that names the columns, ``easydel`` or ``trl``.
        max_length: Maximum number of ids of a prompt with an answer. None: no limit.
        tools: Tools that conversations may call, for rows that name none.
        long_documents: Treatment of rows longer than `max_length`: ``truncate`` cuts
            the ends of the answers, ``drop`` leaves the row out.
        special_tokens_in_text: Treatment of rows that spell a special token: ``fail``
            refuses them, ``encode`` makes it a control token, ``literal`` keeps it
            text.
        fields: Names of the row's fields where they differ, such as
            ``prompt_field="question"``.

    Raises:
        ConfigError: A name is unknown, or the tokenizer lacks EOS or the chat template
            that rows need.

    Example:
        >>> import tokenlake as tl
        >>> rows = tl.PreferenceRows("dpo", "openai-community/gpt2", max_prompt_length=8, max_completion_length=4)
        >>> row = next(iter(rows.expand({"prompt": "2 + 2?", "chosen": " 4", "rejected": " 5"})))
        >>> sorted(row)
        ['chosen_attention_mask', 'chosen_input_ids', 'chosen_labels', 'prompt_attention_mask', 'prompt_input_ids',
        'rejected_attention_mask', 'rejected_input_ids', 'rejected_labels']
    """

    def __init__(
        self,
        method: Method,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        *,
        trainer: Trainer = "easydel",
        max_length: int | None = None,
        tools: Sequence[Any] | None = None,
        long_documents: Literal["truncate", "drop"] = "truncate",
        special_tokens_in_text: Literal["fail", "encode", "literal"] = "fail",
        **fields: str,
    ) -> None:
        require_one_of("method", method, METHODS)
        require_one_of("trainer", trainer, TRAINERS)
        require_one_of("long_documents", long_documents, ("truncate", "drop"))
        _require_known_fields(fields)
        _require_lengths_of_method(method, max_prompt_length, max_completion_length)
        _require_positive("max_length", max_length)
        files = files_of(tokenizer)
        self._settings = settled_preference(
            ResolvedPreference(method=method, trainer=trainer, **fields), files
        )
        self._tools = tools
        # A text that holds control tokens is encoded with them; rows that must not
        # spell any are refused before.
        self._renderer = PreferenceRenderer(
            self._settings, files, special_tokens_in_text
        )
        encoder_mode = special_tokens_in_text
        if self._renderer.control_tokens:
            encoder_mode = "encode"
        self._encoder = Encoder(
            files, engine="tokenizers", special_tokens_in_text=encoder_mode
        )
        # Without a limit nothing is long. Methods without answers need no EOS.
        self._joiner = Joiner(
            method=method,
            prefix=self._encoder.prefix,
            eos_id=-1 if files.eos_id is None else files.eos_id,
            max_length=max_length or 0,
            long_documents=long_documents if max_length else "keep",
            max_prompt=max_prompt_length,
            max_completion=max_completion_length,
        )

    def expand(self, example: Row) -> Sequence[dict[str, Any]]:
        """Return the rows that are made of `example`.

        Raises:
            BadRecordError: The row cannot be used.
        """
        tools_field = self._settings.tools_field
        if self._tools is not None and example.get(tools_field) is None:
            example = {**example, tools_field: list(self._tools)}
        rendered = self._renderer.render(Rows(objects=[example]))
        for _, fault in rendered.bad:
            raise BadRecordError(f"{fault.reason}: {fault.detail}", reason=fault.reason)
        encoded = self._encoder.encode(rendered.text)
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        batch = preference_batch(self._settings, joined, rendered.label, rendered.text)
        return batch.to_pylist()


_REFUSED_ARGUMENTS: Final = {
    "add_special_tokens": "the tokenizer and the method determine how a row begins and ends; leave it out",
    "label_pad_token_id": f"labels are {IGNORED} for tokens outside the loss; leave it out",
    "embedding_tokenizer": "use a second PreferenceRows for a second tokenizer",
    "truncation": "set long_documents='truncate' or 'drop'",
}
"""Arguments of other libraries' transforms, and how to get their effect."""


def _require_known_fields(fields: dict[str, str]) -> None:
    """Raise ConfigError for names that are no fields of a row."""
    settings = [setting.name for setting in fields_of(ResolvedPreference)]
    known_names = [name for name in settings if name.endswith("_field")]
    known_list = f"the fields are {', '.join(sorted(known_names))}"
    for name in fields.keys() - set(known_names):
        remedy = _REFUSED_ARGUMENTS.get(name, known_list)
        raise ConfigError(
            f"{name}: PreferenceRows does not have this argument; {remedy}",
            field_path=name,
        )


def _require_lengths_of_method(
    method: Method, max_prompt: int | None, max_completion: int | None
) -> None:
    """Raise ConfigError for a limit of a part that the rows of a method do not have."""
    limits = {"max_prompt_length": max_prompt, "max_completion_length": max_completion}
    # Rows for reward models hold whole texts, and those of grpo no answer.
    unsupported: set[str] = set()
    if method == "reward":
        unsupported = set(limits)
    elif method == "grpo":
        unsupported = {"max_completion_length"}
    for argument, limit in limits.items():
        _require_positive(argument, limit)
        if limit is not None and argument in unsupported:
            raise ConfigError(
                f"{argument}: rows for {method} do not have this part; leave it out, or use max_length"
            )


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} is {value}, expected a positive number, or None")


DPOPreprocessTransform: Final = partial(PreferenceRows, "dpo")
ORPOPreprocessTransform: Final = partial(PreferenceRows, "orpo")
CPOPreprocessTransform: Final = partial(PreferenceRows, "cpo")
KTOPreprocessTransform: Final = partial(PreferenceRows, "kto")
BCOPreprocessTransform: Final = partial(PreferenceRows, "bco")
RewardPreprocessTransform: Final = partial(PreferenceRows, "reward")
GRPOPreprocessTransform: Final = partial(PreferenceRows, "grpo")
