"""The configurations that the documentation shows are valid, and a build would act on every key of them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.steps import first_steps, foreseen

ROOT = Path(__file__).parent.parent
DATASET = "datasets:\n  - data_files: data/*.jsonl\n    tokenizer: some/tokenizer\n"
MIXED = "datasets:\n" + "".join(
    f"  - {{name: {name}, data_files: {name}.jsonl}}\n" for name in ("code", "web")
)
BLOCKS = [
    (page, number, block)
    for page in ("README.md", "docs/texts.md", "docs/mixing.md")
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


def test_there_is_something_to_check() -> None:
    assert {page for page, _, _ in BLOCKS} >= {"README.md", "docs/texts.md", "docs/mixing.md"}


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=lambda value: str(value)[:20])
def test_a_configuration_of_the_documentation_resolves(
    page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = block if "datasets:" in block else (MIXED if "mix:" in block else DATASET) + block
    if "tokenizer" not in text:
        text += "default_tokenizer: some/tokenizer\n"
    path = tmp_path / "shown.yaml"
    path.write_text(text)
    for name in ("AWS_KEY", "AWS_SECRET", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    assert _resolves(load_config(path)), (page, number)


def _resolves(config: PipelineConfig) -> bool:
    if config.is_text_build:
        return bool(resolve(config, environ={}).sources)
    steps = first_steps(config)
    texts = [resolve(step, environ={}) for step in steps.values()]
    last = foreseen(config)
    return len(last.parents) >= len(texts)


def test_the_glossary_is_alphabetical_and_names_what_is_there() -> None:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:]
    assert len(lines) <= 60
    assert words == sorted(words, key=str.lower)
    for page in ("docs/glossary.md", "docs/architecture.md"):
        for path in re.findall(r"`([a-z_]+/[a-z_/.]*)`", (ROOT / page).read_text()):
            assert (ROOT / "lib/tokenlake" / path).exists(), (page, path)


def test_tests_and_modules_that_pages_name_are_there() -> None:
    for page in (*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "benchmarks/README.md"):
        text = page.read_text()
        for path in re.findall(r"`(?:tests/)?((?:[a-z]+/)*test_\w+\.py)`", text):
            assert (ROOT / "tests" / path).exists(), (page.name, path)
        for module, names in re.findall(r"^from (tokenlake[\w.]*) import (.+)$", text, re.MULTILINE):
            for name in names.split(", "):
                assert hasattr(import_module(module), name), (page.name, module, name)
