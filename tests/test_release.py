"""A release: the changelog gets the version and its date, and nothing is published
unless a person turns it on.
"""

from __future__ import annotations

import datetime
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
DAY = datetime.date(2030, 1, 2)
CHANGELOG = """\
# Changelog

## [Unreleased]

### Added

- A second thing.

## [0.1.0] - 2029-12-01

### Added

- A first thing.

[0.1.0]: https://example.org/
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "release", ROOT / ".ci" / "release.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_unreleased_changes_become_those_of_the_version(release: ModuleType) -> None:
    changelog = release.dated(CHANGELOG, "0.2.0", DAY)
    assert (
        "## [Unreleased]\n\n## [0.2.0] - 2030-01-02\n\n### Added\n\n- A second thing."
        in changelog
    )
    assert (
        release.notes(changelog, "0.2.0", "v0.2.0")
        == "### Added\n\n- A second thing.\n"
    )
    assert (
        release.notes(changelog, "0.1.0", "v0.1.0") == "### Added\n\n- A first thing.\n"
    )


@pytest.mark.parametrize(
    ("changelog", "version", "message"),
    [
        (CHANGELOG, "0.1.0", "version 0.1.0 has a section"),
        (
            "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2029-12-01\n\n- x\n",
            "0.2.0",
            "missing or empty",
        ),
        ("# Changelog\n", "0.2.0", "missing or empty"),
    ],
    ids=["a version twice", "no changes", "no section"],
)
def test_a_changelog_that_cannot_be_dated(
    release: ModuleType, changelog: str, version: str, message: str
) -> None:
    with pytest.raises(release.ReleaseError, match=message):
        release.dated(changelog, version, DAY)


@pytest.mark.parametrize(
    ("version", "tag", "message"),
    [
        ("0.1.0", "v0.1.1", "got v0.1.1, expected v0.1.0"),
        ("0.2.0", "v0.2.0", r"no section '## \[0.2.0\] - YYYY-MM-DD'"),
    ],
    ids=["another tag", "no date"],
)
def test_a_tag_that_does_not_fit(
    release: ModuleType, version: str, tag: str, message: str
) -> None:
    with pytest.raises(release.ReleaseError, match=message):
        release.notes(CHANGELOG, version, tag)


def test_the_command_dates_a_changelog(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = tmp_path / "lib/tokenlake/_version.py"
    number.parent.mkdir(parents=True)
    number.write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    assert release.main(["notes", "v0.2.0"], tmp_path) == 1
    assert "python .ci/release.py date" in capsys.readouterr().err
    assert release.main(["date"], tmp_path) == 0
    assert release.main(["notes", "v0.2.0"], tmp_path) == 0
    assert "A second thing." in capsys.readouterr().out
    assert release.main([], tmp_path) == 1


def _jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def test_nothing_is_published_unless_a_person_turns_it_on() -> None:
    release_jobs = _jobs("release.yml")
    assert all(
        "vars.PUBLISH == 'true'" in release_jobs[name]["if"]
        for name in ("publish", "page")
    )
    assert "vars.DEPLOY_DOCS == 'true'" in _jobs("docs.yml")["deploy"]["if"]


def test_jobs_have_the_permissions_that_they_need_and_no_others() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            writes = {
                right
                for right, level in job.get("permissions", {}).items()
                if level == "write"
            }
            allowed = {
                "attest": {"id-token", "attestations"},
                "publish": {"id-token"},
                "page": {"contents"},
                "deploy": {"pages", "id-token"},
            }
            assert writes == allowed.get(name, set()), f"{path.name}: {name}"
            assert job["timeout-minutes"] <= 90
            assert "secrets." not in str(job)


def test_the_state_of_this_checkout_can_be_released(release: ModuleType) -> None:
    """Either the version is dated already, or its changes are waiting under
    Unreleased.
    """
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = release.version_of(ROOT)
    if f"## [{version}]" not in changelog:
        changelog = release.dated(changelog, version, DAY)
    assert release.notes(changelog, version, f"v{version}").startswith("### ")
