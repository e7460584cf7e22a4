"""One row at a time for a trainer that tokenizes while it reads: supervised rows and rows of preferences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields as fields_of
from functools import partial
from typing import Any, Final, Literal, final

from tokenlake.columns import IGNORED, METHODS, TRAINERS, Method, Trainer
from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedPreference
from tokenlake.config.values import require_one_of
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Row, Rows
from tokenlake.text.preference import PreferenceRenderer, settled_preference
from tokenlake.text.preference_ids import Joiner, preference_batch
from tokenlake.text.prompt_engine import Labeller, prompt_labeller, resolved_prompt
from tokenlake.text.transform import ExpandTransform, Transform
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import files_of

_ANY_LENGTH: Final = 1 << 30


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
        _require_positive("max_length", max_length)
        self._files = files_of(tokenizer)
        self._masked, self._special, self._ends = mask_prompt, special_tokens_in_text, add_eos
        self._format = formatting_func
        self._conversations = MESSAGES_FIELDS if messages_field is None else (messages_field,)
        self._pair, self._text = (prompt_field, completion_field), (text_field,)
        self._options: Final[dict[str, Any]] = {
            "max_length": max_length or _ANY_LENGTH,
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


@final
class PreferenceRows(ExpandTransform):
    """Rows of preferences to the rows that a trainer reads; equal to what a build makes of them.

    ``PreferenceRows("dpo", "org/model").expand({"prompt": ..., "chosen": ..., "rejected": ...})`` gives one row, with
    the ids of prompt and answers; a pair that is given to kto or bco becomes two. Rows that a length policy leaves
    out become none.

    Args:
        method: dpo, orpo, cpo, reward, kto, bco or grpo.
        tokenizer: a Hub id, a folder, a file, files that were read already, or a fast tokenizer of transformers.
        max_prompt_length: most ids of a prompt, which loses its beginning, but for BOS; None: any number. Rows for
            reward are whole texts, which have none.
        max_completion_length: most ids of an answer, which loses its end; None: any number.
        trainer: whose column names, ``easydel`` or ``trl``.
        max_length: most ids of a prompt with an answer; None: any number.
        tools: that conversations may call, of rows that name none.
        long_documents: of longer ones ``truncate`` cuts the answers at their ends, ``drop`` leaves the row out.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``, ``literal``.
        fields: other names of the row's fields, such as ``prompt_field="question"``.

    Raises:
        ConfigError: an unknown name, or a tokenizer that lacks EOS or the chat template that rows need.
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
        _check_preference(method, max_prompt_length, max_completion_length, fields)
        _require_positive("max_length", max_length)
        files = files_of(tokenizer)
        settings = settled_preference(ResolvedPreference(method=method, trainer=trainer, **fields), files)
        self._settings, self._tools = settings, tools
        self._renderer = PreferenceRenderer(settings, files, special_tokens_in_text)
        mode = "encode" if self._renderer.control_tokens else special_tokens_in_text
        self._encoder = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)
        self._joiner = Joiner(
            method,
            self._encoder.prefix,
            -1 if files.eos_id is None else files.eos_id,
            max_length or 0,
            long_documents if max_length else "keep",
            max_prompt_length,
            max_completion_length,
        )

    def expand(self, example: Row) -> Sequence[dict[str, Any]]:
        """Return the rows made of `example`.

        Raises:
            BadRecordError: the row cannot be used.
        """
        field = self._settings.tools_field
        if self._tools is not None and example.get(field) is None:
            example = {**example, field: list(self._tools)}
        made = self._renderer.render(Rows(objects=[example]))
        if made.bad:
            fault = made.bad[0][1]
            raise BadRecordError(f"{fault.reason}: {fault.detail}", reason=fault.reason)
        encoded = self._encoder.encode(made.text)
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        return preference_batch(self._settings, joined, made.label, made.text).to_pylist()


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} is {value}, expected a positive number, or None")


_NOT_TAKEN: Final = {
    "add_special_tokens": "a row begins and ends as the tokenizer and the method say; leave it out",
    "label_pad_token_id": f"labels are {IGNORED} where nothing is learned; leave it out",
    "embedding_tokenizer": "use a second PreferenceRows for a second tokenizer",
    "truncation": "say long_documents='truncate' or 'drop'",
}


def _check_preference(
    method: Method, prompt: int | None, completion: int | None, fields: dict[str, str]
) -> None:
    """Raise ConfigError for lengths that a method's rows have no part for, and for unknown names."""
    known = sorted(each.name for each in fields_of(ResolvedPreference) if each.name.endswith("_field"))
    for name in fields.keys() - set(known):
        how = _NOT_TAKEN.get(name, f"the fields are {', '.join(known)}")
        raise ConfigError(f"{name}: PreferenceRows takes no such argument; {how}", field_path=name)
    lengths = {"max_prompt_length": prompt, "max_completion_length": completion}
    lacks = {"reward": lengths, "grpo": {"max_completion_length": completion}}.get(method, {})
    for name, value in lengths.items():
        _require_positive(name, value)
        if value is not None and name in lacks:
            raise ConfigError(f"{name}: rows for {method} have no such part; leave it out, or use max_length")


SFTPreprocessTransform: Final = partial(SupervisedRows, mask_prompt=False)
"""As :class:`SupervisedRows`; nothing but BOS is masked, unless ``mask_prompt=True``."""

DPOPreprocessTransform: Final = partial(PreferenceRows, "dpo")
ORPOPreprocessTransform: Final = partial(PreferenceRows, "orpo")
CPOPreprocessTransform: Final = partial(PreferenceRows, "cpo")
KTOPreprocessTransform: Final = partial(PreferenceRows, "kto")
BCOPreprocessTransform: Final = partial(PreferenceRows, "bco")
RewardPreprocessTransform: Final = partial(PreferenceRows, "reward")
GRPOPreprocessTransform: Final = partial(PreferenceRows, "grpo")
