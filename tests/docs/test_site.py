"""The site: it builds without a warning, its links lead somewhere, it loads nothing from elsewhere, misses nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tokenlake
from tests.docs.snippets import ROOT
from tokenlake import PipelineConfig, easydel
from tokenlake.cli.app import main

VARIABLE = re.compile(r"\bTOKENLAKE_[A-Z_]+\b")
LINK = re.compile(r"\]\(([^)\s#]*)#?([^)\s]*)\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does: strictly, so that a broken link or anchor inside it is an error."""
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
        assert not re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="https?:', text), path


def test_the_reference_holds_every_key_command_and_name(site: Path) -> None:
    keys, commands, names = (
        (site / "reference" / name / "index.html").read_text() for name in ("keys", "commands", "python")
    )
    assert all(f"<code>{name}</code>" in keys for name in PipelineConfig.model_fields)
    assert "Number of rows of a lane within which" in keys  # the text under a field of a section
    assert 'id="verify"' in commands and "every byte and count" in commands
    public = {*tokenlake.__all__, *easydel.__all__} - {"__version__"}
    assert [name for name in public if f">{name}<" not in names] == []


def test_every_variable_of_the_code_is_told_and_no_other() -> None:
    code = "".join(path.read_text() for path in (ROOT / "lib").rglob("*.py"))
    used = {name for name in VARIABLE.findall(code) if not name.endswith("_")}
    assert set(VARIABLE.findall((ROOT / "docs/environment.md").read_text())) == used


def test_links_lead_to_files_and_headings() -> None:
    """Also those that the site does not have: to and from files beside docs/."""
    broken: list[str] = []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]
    for page in pages:
        for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
            target = (page.parent / path).resolve() if path else page
            if "://" in path or target.parent.name == "reference":  # the latter are pages of the site alone
                continue
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{page.name}: {path}#{anchor}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site make of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.M)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_a_command_that_a_page_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(path.read_text() for path in ROOT.glob("docs/**/*.md"))
    for name in set(re.findall(r"`tokenlake ([a-z]+)[ `]", text)):
        assert main([name, "--help"]) == 0, name
        capsys.readouterr()
