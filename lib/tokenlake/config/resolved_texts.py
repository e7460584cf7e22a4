"""How a source's rows become texts, worked out: frozen, of plain values, JSON-able."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from tokenlake.preferences import Method, Trainer

MESSAGES_FIELDS: Final = ("messages", "conversations", "conversation")
"""Fields that hold a conversation, in the order in which they are looked for."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChat:
    """Conversations to text; see :class:`tokenlake.config.chat.ChatConfig`.

    Attributes:
        template: the Jinja text itself; None until the plan took the tokenizer's.
        messages_field: None until the plan found it.
    """

    template: str | None = None
    messages_field: str | None = None
    tools_field: str | None = "tools"
    role_mapping: Mapping[str, str] = field(default_factory=_nothing)
    loss: Literal["assistant", "all"] = "assistant"
    template_kwargs: Mapping[str, Any] = field(default_factory=_nothing)
    add_generation_prompt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPrompt:
    """Columns to a prompt and its answer; see :class:`tokenlake.config.prompt.PromptConfig`.

    Attributes:
        chat_template: for the format ``chat``: the Jinja text; None until the plan took the tokenizer's.
    """

    format_type: Literal["custom", "chat", "completion"] = "custom"
    template: str | None = None
    input_columns: tuple[str, ...] = ()
    label_column: str | None = None
    optional_columns: tuple[str, ...] = ()
    separator: str = "\n"
    mask_input: bool = True
    add_bos: bool = True
    add_eos: bool = True
    system_message: str | None = None
    examples: tuple[Mapping[str, Any], ...] = ()
    example_separator: str = "\n\n"
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPreference:
    """Preferences; see :class:`tokenlake.config.preference.PreferenceConfig`.

    Attributes:
        chat_template: for conversations: the Jinja text; None until the plan took the tokenizer's.
    """

    method: Method
    trainer: Trainer = "easydel"
    prompt_field: str = "prompt"
    chosen_field: str = "chosen"
    rejected_field: str = "rejected"
    completion_field: str = "completion"
    label_field: str = "label"
    tools_field: str = "tools"
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTexts:
    """What is done to the rows of a source before they are tokenized. All of it is identity.

    Attributes:
        format_callback: ``module:function`` of a row, applied first.
        format_fields: fields to rename after it, (old, new).
        transforms: applied in order after that, each ``{name: arguments}``.
        callables: (name, sha256 of the file that defines it) of every function among them, once the plan looked.
        chat, prompt, preference: at most one; without one the text is the field `content_field`.
        left_open: settings of the source that nobody wrote (``content_field``, ``special_tokens_in_text``), which the
            plan may decide from what the rows are; empty once it has.
    """

    format_callback: str | None = None
    format_fields: tuple[tuple[str, str], ...] = ()
    transforms: tuple[Mapping[str, Any], ...] = ()
    callables: tuple[tuple[str, str], ...] = ()
    chat: ResolvedChat | None = None
    prompt: ResolvedPrompt | None = None
    preference: ResolvedPreference | None = None
    left_open: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the text is a field of the row, read as it is."""
        return not any((self.rows_change, self.chat, self.prompt, self.preference))

    @property
    def rows_change(self) -> bool:
        """Whether rows are changed before their text is made."""
        return bool(self.format_callback or self.format_fields or self.transforms)

    @property
    def masked(self) -> bool:
        """Whether only a part of a document's tokens may bear loss."""
        return self.chat is not None or self.prompt is not None

    def identity(self) -> dict[str, Any]:
        """Return what of it is set, JSON-able; nothing for plain text."""
        return {key: value for key, value in asdict(self).items() if value and key != "left_open"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ResolvedTexts:
        """Rebuild it from ``dataclasses.asdict``, also after a trip through JSON."""
        chat, prompt, preference = data["chat"], data["prompt"], data["preference"]
        return cls(
            format_callback=data["format_callback"],
            format_fields=tuple((old, new) for old, new in data["format_fields"]),
            transforms=tuple(data["transforms"]),
            callables=tuple((name, digest) for name, digest in data["callables"]),
            chat=None if chat is None else ResolvedChat(**chat),
            prompt=None if prompt is None else _prompt(prompt),
            preference=None if preference is None else ResolvedPreference(**preference),
            left_open=tuple(data["left_open"]),
        )


def _prompt(data: Mapping[str, Any]) -> ResolvedPrompt:
    fields: dict[str, Any] = {
        **data,
        "input_columns": tuple(data["input_columns"]),
        "optional_columns": tuple(data["optional_columns"]),
        "examples": tuple(data["examples"]),
    }
    return ResolvedPrompt(**fields)
