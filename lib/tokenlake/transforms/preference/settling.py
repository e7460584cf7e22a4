"""What only the tokenizer can say of a preference: its chat template, and whether it has an EOS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import ConfigError
from tokenlake.tokenizers import TokenizerFiles

_FILE = "chat_template.jinja"


def settled_preference(settings: ResolvedPreference, files: TokenizerFiles) -> ResolvedPreference:
    """Return the settings with the tokenizer's chat template, where it has one.

    Raises:
        ConfigError: answers would have no end, because the tokenizer names no EOS.
    """
    if settings.method != "grpo" and files.eos_id is None:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; set "
            "eos_token in its tokenizer_config.json",
            tokenizer=files.name,
        )
    return replace(settings, chat_template=settings.chat_template or _template(files))


def _template(files: TokenizerFiles) -> str | None:
    """Return the tokenizer's template; of several named ones the one called default."""
    if _FILE in files.files:
        return files.files[_FILE].decode()
    found: Any = files.config.get("chat_template")
    if isinstance(found, list):
        named = cast("list[dict[str, str]]", found)
        return next((each["template"] for each in named if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None
