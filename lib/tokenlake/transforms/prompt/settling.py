"""What a prompt needs of a tokenizer, and which columns it needs of rows."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.errors import ConfigError
from tokenlake.tokenizers import TokenizerFiles


def check_end(prompt: ResolvedPrompt, files: TokenizerFiles, eos_id: int | None) -> None:
    """Require an EOS where answers are to end with one; in a conversation the chat template ends them.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.

    Raises:
        ConfigError: there is none.
    """
    if not prompt.add_eos or eos_id is not None or prompt.format_type == "chat":
        return
    raise ConfigError(
        f"prompt.add_eos: tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; "
        "set eos_token in its tokenizer_config.json, or add_eos: false",
        field_path="prompt.add_eos",
        expected="a tokenizer with an EOS token",
        got=None,
    )
