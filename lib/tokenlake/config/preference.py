"""How rows of preferences become what a preference trainer reads."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Text


class PreferenceConfig(Section):
    """Section `preference` of a dataset: rows hold answers that are better and worse, texts or conversations."""

    method: Literal["dpo", "orpo", "cpo", "reward", "kto", "bco", "grpo"]
    """Which trainer the rows are for: pairs (dpo, orpo, cpo, reward), judged answers (kto, bco), or prompts (grpo)."""

    prompt_field: Text = "prompt"
    """Field of the prompt; where rows lack it, what `chosen` and `rejected` begin with alike."""

    chosen_field: Text = "chosen"
    """Field of the better answer."""

    rejected_field: Text = "rejected"
    """Field of the worse answer."""

    completion_field: Text = "completion"
    """Field of an answer that was judged by itself."""

    label_field: Text = "label"
    """Field that says whether it was good: true or false."""
