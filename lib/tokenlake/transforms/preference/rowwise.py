"""One row at a time, for a trainer that tokenizes while it reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, Literal, final

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.preferences import METHODS, TRAINERS, Method, Trainer
from tokenlake.rows import Row, Rows
from tokenlake.tokenizers import Encoder, TokenizerFiles, load_tokenizer
from tokenlake.transforms.base import ExpandTransform
from tokenlake.transforms.preference.joining import Joiner
from tokenlake.transforms.preference.renderer import PreferenceRenderer
from tokenlake.transforms.preference.settling import settled_preference
from tokenlake.transforms.preference.table import preference_batch


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
        long_documents: what becomes of more: ``truncate`` cuts answers at their ends, ``drop`` leaves the row out.
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
        _require("method", method, METHODS)
        _require("trainer", trainer, TRAINERS)
        _require("long_documents", long_documents, ("truncate", "drop"))
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


def _require(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{what} is {value!r}, expected one of {', '.join(map(repr, allowed))}")
