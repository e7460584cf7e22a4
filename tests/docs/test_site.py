"""The site: it builds without a warning, its links lead somewhere, it loads nothing
from elsewhere, misses nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest

import tokenlake
from tests.docs.snippets import ROOT
from tokenlake import PipelineConfig, data_pipeline, easydel, trainer
from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main

VARIABLE = re.compile(r"\bTOKENLAKE_[A-Z_]+\b")
LINK = re.compile(r"\]\(([^)\s#]*)#?([^)\s]*)\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does: strictly, so that a broken link or anchor inside
    it is an error.
    """
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert len(pages) > 30
    for path, text in pages.items():
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="https?:', text), path
        assert not re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="https?:', text
        ), path


def test_the_reference_holds_every_key_command_and_name(site: Path) -> None:
    pages = {
        path.parent.name: path.read_text()
        for path in site.glob("reference/*/index.html")
    }
    keys, commands = pages.pop("keys"), pages.pop("commands")
    assert all(f"<code>{name}</code>" in keys for name in PipelineConfig.model_fields)
    # The text under a field of a section.
    assert "Number of rows of a lane within which" in keys
    assert all(f'id="{name}"' in commands for name in COMMANDS)
    assert "<code>--deep</code>" in commands and "Decode every row" in commands
    public = {
        *tokenlake.__all__,
        *data_pipeline.__all__,
        *trainer.__all__,
        *easydel.__all__,
    } - {"__version__"}
    entries = set(re.findall(r'<h2 id="(\w+)"', "".join(pages.values())))
    assert public - entries == set()
    assert all(f'#{name}"' in pages["python"] for name in public)


def test_the_reference_shows_options_and_no_validators(site: Path) -> None:
    hints = get_type_hints(tokenlake.DataLoader.__init__)
    keywords = hints["options"].__args__[0]
    loading = (site / "reference/loading/index.html").read_text()
    text = "".join(path.read_text() for path in site.glob("reference/*/index.html"))
    assert all(
        f"<code>{option}</code>" in loading for option in keywords.__annotations__
    )
    assert not re.findall(
        r"Annotated\[|BeforeValidator|&lt;function|&lt;factory| at 0x[0-9a-f]", text
    )
    # A role or a literal of reStructuredText that is not Markdown yet.
    assert not re.findall(r":(?:class|func|meth|mod|attr|data):|``", text)


def test_examples_are_shown_without_prompts(site: Path) -> None:
    text = "".join(path.read_text() for path in site.glob("reference/*/index.html"))
    assert text.count("<strong>Example</strong>") > 60
    assert "&gt;&gt;&gt;" not in text


def test_a_search_for_a_validation_split_finds_its_page(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    pages = {entry["location"]: entry for entry in index["docs"]}
    # Titles weigh most, and only this page has a factor among those with both words in
    # the title.
    with_both = [
        place
        for place, page in pages.items()
        if "validation split" in page["title"] and "#" not in place
    ]
    assert (
        with_both == ["howto/validation/"] and pages["howto/validation/"]["boost"] > 1
    )


def test_every_variable_of_the_code_is_told_and_no_other() -> None:
    code = "".join(path.read_text() for path in (ROOT / "lib").rglob("*.py"))
    used = {name for name in VARIABLE.findall(code) if not name.endswith("_")}
    assert set(VARIABLE.findall((ROOT / "docs/environment.md").read_text())) == used


def test_links_lead_to_files_and_headings() -> None:
    """Also those that the site does not have: to and from files beside docs/."""
    broken: list[str] = []
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "benchmarks/README.md",
    ]
    for page in pages:
        for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
            target = (page.parent / path).resolve() if path else page
            # The latter are pages of the site alone.
            if "://" in path or target.parent.name == "reference":
                continue
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{page.name}: {path}#{anchor}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site make of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.M)
    return {
        re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in titles
    }


def test_a_command_that_a_page_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(path.read_text() for path in ROOT.glob("docs/**/*.md"))
    for name in set(re.findall(r"`tokenlake ([a-z]+)[ `]", text)):
        assert main([name, "--help"]) == 0, name
        capsys.readouterr()
