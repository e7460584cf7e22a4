"""YAML from anywhere: refused when it is larger, deeper or more than any
configuration, in bounded time.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tokenlake import load_config
from tokenlake.base import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.card_layout import card_configs

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)
)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"x\.yaml:\d+: its anchors expand to more than 1,000,000 values"),
        (MERGES, r"x\.yaml:\d+: its anchors expand to more than 1,000,000 values"),
        ("a: &a [*a]", "this anchor contains itself"),
        ("a: &a {b: *a}", "this anchor contains itself"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ("- " * 50_000, "nested more than 100 levels deep"),
        ("{a: " * 50_000, "nested more than 100 levels deep"),
        ("[" * 120 + "]" * 120, "nested more than 100 levels deep"),
        ("a: 1\nb: 2\na: 3\n", r"x\.yaml:3: key 'a' is already on line 1"),
        ("x: {a: 1, 'a': 2}", "key 'a' is already on line 1"),
        (
            "a: !!python/object/apply:os.system ['touch /tmp/x']",
            "could not determine a constructor",
        ),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("!custom {a: 1}", "could not determine a constructor"),
        ("a: !!python/object/new:os.popen [ls]", "could not determine a constructor"),
        ("a: 1" + ":59" * 500_000, "characters that look like a number"),
        ("a: " + "9" * 5_000, "characters that look like a number"),
        ("a: !!binary " + "A" * 5_000, "characters that look like a number"),
        ("a: 2024-13-45", "not YAML"),
        ("<<: 1", "not YAML"),
        ("<<: [1]", "not YAML"),
        ("? [a]\n: 1", "not YAML"),
        ("? {a: 1}\n: 1", "not YAML"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("a: \x07", "not YAML"),
        ("a: *nobody", "not YAML"),
        ("%YAML 9.9\n---\na: 1", "not YAML"),
        ("a" * 4_194_305, r"4,194,305 characters, expected at most 4,194,304"),
    ],
)
def test_refused_soon(text: str, message: str) -> None:
    before = cpu()
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, "x.yaml")
    # A bound, not a measure: unbounded, these take hours or all memory.
    assert cpu() - before < 20
    assert len(str(caught.value)) < 2000


def test_what_is_allowed() -> None:
    deep = "[" * 100 + "]" * 100
    assert not isinstance(parse_yaml(deep, "x").data, dict)
    shared = parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}", "x").data
    assert shared == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
    assert parse_yaml(f"a: '{'9' * 5_000}'", "x").data == {"a": "9" * 5_000}


def test_a_configuration_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="expected at most"):
        load_config(Path("/dev/zero"))


def test_overrides_are_yaml_too() -> None:
    for text in (
        f"name={'[' * 5000}",
        "name=!!python/name:os.system",
        "datasets={a: 1, a: 2}",
    ):
        with pytest.raises(ConfigError):
            load_config({"datasets": [{"data_files": "x", "name": "a"}]}, [text])


@pytest.mark.parametrize(
    "front", [LAUGHS, "configs: !!python/name:os.system", "[" * 5000, "a: 1\na: 2"]
)
def test_cards_of_the_hub_are_bounded_as_well(front: str) -> None:
    with pytest.raises(
        ConfigError, match=r"dataset 'org/set': the card .* cannot be used: .*not YAML"
    ):
        card_configs(f"---\n{front}\n---\n", "org/set")
