"""The configurations that the documentation shows are valid, and a build would act on every key of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenlake.config import load_config
from tokenlake.config.resolve import resolve

ROOT = Path(__file__).parent.parent
DATASET = "datasets:\n  - data_files: data/*.jsonl\n    tokenizer: some/tokenizer\n"
BLOCKS = [
    (page, number, block)
    for page in ("README.md", "docs/texts.md")
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


def test_there_is_something_to_check() -> None:
    assert {page for page, _, _ in BLOCKS} >= {"README.md", "docs/texts.md"}


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=lambda value: str(value)[:20])
def test_a_configuration_of_the_documentation_resolves(
    page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = block if "datasets:" in block else DATASET + block
    if "tokenizer" not in text:
        text += "default_tokenizer: some/tokenizer\n"
    path = tmp_path / "shown.yaml"
    path.write_text(text)
    for name in ("AWS_KEY", "AWS_SECRET", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    assert resolve(load_config(path), environ={}).sources, (page, number)
