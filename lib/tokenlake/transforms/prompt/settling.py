"""What only the tokenizer can say of a prompt: whether its template fits, its chat template, and where answers end."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.errors import ConfigError
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.prompt.opening import open_prompt


def settled_prompt(prompt: ResolvedPrompt, files: TokenizerFiles, eos_id: int | None) -> ResolvedPrompt:
    """Return the settings with nothing left open.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.

    Raises:
        ConfigError: the template is wrong or does not fit its columns, or answers would have no end.
    """
    if prompt.add_eos and eos_id is None:
        raise no_eos(files)
    open_prompt(prompt, files, "fail")
    return prompt


def no_eos(files: TokenizerFiles) -> ConfigError:
    """Return the error for answers that nothing ends."""
    return ConfigError(
        f"prompt.add_eos: tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; "
        "set eos_token in its tokenizer_config.json, or add_eos: false",
        field_path="prompt.add_eos",
        expected="a tokenizer with an EOS token",
        got=None,
    )
