"""One row at a time for a trainer that tokenizes while it reads: supervised rows and rows of preferences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, Literal, final

from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat, ResolvedPreference
from tokenlake.config.values import require_one_of
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.preference_columns import METHODS, TRAINERS, Method, Trainer
from tokenlake.sources.rows import Row, Rows
from tokenlake.text.chat.renderer import ChatRenderer
from tokenlake.text.chat.tokenizer_template import chosen_template
from tokenlake.text.preference import PreferenceRenderer, settled_preference
from tokenlake.text.preference_ids import Joiner, preference_batch
from tokenlake.text.prompt.engine import Labeller, prompt_labeller, resolved_prompt
from tokenlake.text.transform import ExpandTransform, Transform
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer

_ANY_LENGTH: Final = 1 << 30


@final
class SupervisedRows(Transform):
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` (lists of ints) of a row, for supervised fine-tuning.

    A row has a conversation (``messages``, ``conversations`` or ``conversation``), which the tokenizer's chat template
    renders, or a prompt and its completion. A conversation gives what an unpacked build makes of it.

    Args:
        tokenizer: a Hub id, a folder, a file, or files that were read already.
        mask_prompt: labels are -100 on all but what the assistant says, or the completion; False: on nothing but BOS.
        max_length: most ids of a row, whose end is cut; None: any number.
        prompt_field, completion_field: names of the fields of rows without a conversation.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``: it becomes one.

    Raises:
        ConfigError: the tokenizer cannot do what rows need; of a chat template, when the first conversation comes.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | TokenizerFiles,
        *,
        mask_prompt: bool = True,
        max_length: int | None = None,
        prompt_field: str = "prompt",
        completion_field: str = "completion",
        special_tokens_in_text: Literal["fail", "encode"] = "fail",
    ) -> None:
        if max_length is not None and max_length < 1:
            raise ConfigError(f"max_length is {max_length}, expected a positive number, or None")
        self._files = tokenizer if isinstance(tokenizer, TokenizerFiles) else load_tokenizer(tokenizer)
        self._masked, self._special, self._most = (
            mask_prompt,
            special_tokens_in_text,
            max_length or _ANY_LENGTH,
        )
        self._pair = (prompt_field, completion_field)
        self._labellers: dict[str | None, Labeller] = {}

    def __call__(self, example: Row) -> Row:
        """Return the row of the trainer.

        Raises:
            BadRecordError: the row has neither, cannot be rendered, or nothing to learn is left of it.
        """
        field = next((name for name in MESSAGES_FIELDS if example.get(name) is not None), None)
        if field is None and any(example.get(name) is None for name in self._pair):
            raise BadRecordError(
                f"the row has neither a conversation ({', '.join(MESSAGES_FIELDS)}) nor {self._pair[0]!r} and "
                f"{self._pair[1]!r}; its fields are {', '.join(example) or 'none'}",
                reason="missing_field",
            )
        if field not in self._labellers:
            self._labellers[field] = self._completed() if field is None else self._spoken(field)
        label = self._labellers[field]
        row = {name: example[name] for name in self._pair} if field is None else example
        (tokens,) = label.tokens([row])
        return {name: values.tolist() for name, values in label.fitted(0, tokens).example().items()}

    def _completed(self) -> Labeller:
        prompt, completion = self._pair
        template = f"{{{{ {prompt} }}}}{{{{ {completion} }}}}"
        settings = resolved_prompt(
            {"template": template, "label_column": completion, "mask_input": self._masked}
        )
        return prompt_labeller(settings, self._files, self._special, max_length=self._most)

    def _spoken(self, field: str) -> Labeller:
        chat = ResolvedChat(
            template=chosen_template(None, self._files),
            messages_field=field,
            loss="assistant" if self._masked else "all",
        )
        renderer = ChatRenderer(chat, self._files, self._special)
        return Labeller(self._files, renderer, self._special, max_length=self._most)


@final
class PreferenceRows(ExpandTransform):
    """Rows of preferences to the rows that a trainer reads; equal to what a build makes of them.

    ``PreferenceRows("dpo", "org/model").expand({"prompt": ..., "chosen": ..., "rejected": ...})`` gives one row, with
    the ids of prompt and answers; a pair that is given to kto or bco becomes two. Rows that a length policy leaves
    out become none.

    Args:
        method: dpo, orpo, cpo, reward, kto, bco or grpo.
        tokenizer: a Hub id, a folder, a file, or files that were read already.
        trainer: whose column names, ``easydel`` or ``trl``.
        max_length: most ids of a prompt with an answer; None: any number.
        long_documents: of longer ones ``truncate`` cuts the answers at their ends, ``drop`` leaves the row out.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``, ``literal``.
        fields: other names of the row's fields, such as ``prompt_field="question"``.

    Raises:
        ConfigError: an unknown name, or a tokenizer that lacks EOS or the chat template that rows need.
    """

    def __init__(
        self,
        method: Method,
        tokenizer: str | os.PathLike[str] | TokenizerFiles,
        *,
        trainer: Trainer = "easydel",
        max_length: int | None = None,
        long_documents: Literal["truncate", "drop"] = "truncate",
        special_tokens_in_text: Literal["fail", "encode", "literal"] = "fail",
        **fields: str,
    ) -> None:
        require_one_of("method", method, METHODS)
        require_one_of("trainer", trainer, TRAINERS)
        require_one_of("long_documents", long_documents, ("truncate", "drop"))
        files = tokenizer if isinstance(tokenizer, TokenizerFiles) else load_tokenizer(tokenizer)
        settings = settled_preference(ResolvedPreference(method=method, trainer=trainer, **fields), files)
        self._settings: Final = settings
        self._renderer = PreferenceRenderer(settings, files, special_tokens_in_text)
        mode = "encode" if self._renderer.control_tokens else special_tokens_in_text
        self._encoder = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)
        self._joiner = Joiner(
            method,
            self._encoder.prefix,
            -1 if files.eos_id is None else files.eos_id,
            max_length or 0,
            long_documents if max_length else "keep",
        )

    def expand(self, example: Row) -> Sequence[dict[str, Any]]:
        """Return the rows made of `example`.

        Raises:
            BadRecordError: the row cannot be used.
        """
        made = self._renderer.render(Rows(objects=[example]))
        if made.bad:
            fault = made.bad[0][1]
            raise BadRecordError(f"{fault.reason}: {fault.detail}", reason=fault.reason)
        encoded = self._encoder.encode(made.text)
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        return preference_batch(self._settings, joined, made.label, made.text).to_pylist()
