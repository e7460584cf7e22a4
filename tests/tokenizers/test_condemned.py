"""One mistake of the fast engine ends its work in the build, proven with a wrong
engine in real worker processes.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.builds import Config
from tests.builds import config_of as settings
from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tokenlake import BuildResult
from tokenlake.etl import Event, UnitFinished, build_dataset
from tokenlake.etl.events import BackendChosen, BackendDiscarded

# About engines that are chosen beside `tokenizers` before 1.0.
pytestmark = needs_stages

WORD = "zzqx"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}User: {{ message.content }}\n{% endif %}{% endfor %}"
)
# Each changes one answer about a text that holds the word: the last id, or where the
# first token ends.
WRONG = {
    "ids": """
        import tokenlake.etl.tokenizers.backends as fast
        right = fast.GigatokenBackend.encode

        def wrong(self, text):
            made = right(self, text)
            ids = made.ids.copy()
            for row, value in enumerate(text.to_pylist()):
                if "zzqx" in value:
                    ids[made.offsets[row + 1] - 1] += 1
            return type(made)(ids, made.offsets)

        fast.GigatokenBackend.encode = wrong
    """,
    "places": """
        import tokenlake.etl.tokenizers.offsets as sizes
        right = sizes.TokenSizes.places

        def wrong(self, text, offsets, ids):
            start, stop, odd = (part.copy() for part in right(self, text, offsets, ids))
            for row, value in enumerate(text.to_pylist()):
                if "zzqx" in value:
                    start[offsets[row] + 1] += 1
                    stop[offsets[row]] += 1
            return start, stop, odd

        sizes.TokenSizes.places = wrong
    """,
}


def document(number: int, *, wrong: bool) -> str:
    return (
        f"document {number}: {WORD if wrong else 'words'} "
        + "of the quick brown fox, \u00e9t\u00e9 " * 4
    )


def answered(text: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": f"Yes, {text}"},
    ]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return samples.save(samples.byte_level(), tmp_path / "tokenizer")


def config_of(
    tmp_path: Path, tokenizer: Path, wrong_files: str, *, chat: bool, store: str
) -> Config:
    """Three files, a unit each, of which some hold the word in every document."""
    source = tmp_path / "in"
    source.mkdir(exist_ok=True)
    for name in "abc":
        texts = [document(number, wrong=name in wrong_files) for number in range(12)]
        rows = [
            {"messages": answered(text)} if chat else {"text": text} for text in texts
        ]
        # A worker's first samples are 4 kB of text: the note, which is none, makes a
        # unit of so few rows.
        lines = [json.dumps({**row, "note": "-" * 400}) + "\n" for row in rows]
        (source / f"{name}.jsonl").write_text("".join(lines))
    options = {"chat": {"template": TEMPLATE}} if chat else {}
    return settings(tmp_path / store, source, tokenizer, pack=64, **options) | {
        "source": {"unit_size": 4096}
    }


def build(config: Config) -> tuple[BuildResult, list[Event]]:
    events: list[Event] = []
    return build_dataset(config, workers=1, on_event=events.append), events


def sabotage(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every worker process that starts from now on have a wrong engine."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(WRONG[what]))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def content(result: BuildResult) -> list[str]:
    return [entry.sha256 for entry in result.manifest.files]


def engines_of(events: list[Event]) -> dict[int, str]:
    """Return the engine that each unit was built with in the end."""
    return {
        event.unit: event.record.engine
        for event in events
        if isinstance(event, UnitFinished)
    }


@pytest.mark.parametrize("what", ["ids", "places"])
def test_a_mismatch_at_the_probe_keeps_the_engine_out(
    what: str, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(tmp_path / "wrong", what, monkeypatch)
    _, events = build(
        config_of(tmp_path, tokenizer, "abc", chat=what == "places", store="store")
    )
    (chosen,) = (event for event in events if isinstance(event, BackendChosen))
    assert (
        chosen.engine == "tokenizers" and "differs from the reference" in chosen.reason
    )
    assert WORD in chosen.reason
    assert not [event for event in events if isinstance(event, BackendDiscarded)]
    assert set(engines_of(events).values()) == {"tokenizers"}


@pytest.mark.parametrize("what", ["ids", "places"])
def test_a_mismatch_in_the_middle_has_every_unit_built_again_by_the_reference(
    what: str, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = what == "places"
    calm, _ = build(config_of(tmp_path, tokenizer, "bc", chat=chat, store="calm"))
    sabotage(tmp_path / "wrong", what, monkeypatch)
    result, events = build(
        config_of(tmp_path, tokenizer, "bc", chat=chat, store="store")
    )
    assert [event.engine for event in events if isinstance(event, BackendChosen)] == [
        "gigatoken"
    ]
    (condemned,) = (event for event in events if isinstance(event, BackendDiscarded))
    part = "the first byte of id" if what == "places" else "from id"
    assert (
        condemned.engine == "gigatoken"
        and part in condemned.reason
        and WORD in condemned.reason
    )
    assert content(result) == content(calm)
    (kept,) = (Path(result.path) / "runs").glob("*condemned*")
    assert WORD in json.loads(kept.read_text())["details"]["text"]
    finished = [
        event.record.engine for event in events if isinstance(event, UnitFinished)
    ]
    assert finished[0] == "gigatoken" and set(engines_of(events).values()) == {
        "tokenizers"
    }
