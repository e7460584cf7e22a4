"""Steps as a configuration has them: what is refused, what is dumped, what names a
function.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from tests.lazily import lazily
from tokenlake import DatasetConfig, PipelineConfig, load_config
from tokenlake.config import dump_yaml, json_schema, source_identity
from tokenlake.config.resolve import resolve, resolve_source
from tokenlake.errors import ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import open_chain, sealed

policy: Any = lazily("tokenlake.runs.policy")

STEPS: list[dict[str, Any]] = [
    {"rename": {"old": "new"}},
    {"filter_non_empty": ["text"]},
    {"where": "lang = 'en'"},
    {"select": ["text", "lang", "n", "meta"]},
    {"drop": "lang"},
    {"add": {"source": "web", "score": 1.5, "tags": ["a"], "none": None}},
    {
        "map": {
            "field": "text",
            "function": "builtins:str.upper",
            "output_field": "loud",
        }
    },
    {"extract": {"source_path": "meta.a[0]", "target_field": "first", "default": "-"}},
    {
        "combine": {
            "source_fields": ["text", "loud"],
            "target_field": "all",
            "separator": "\n",
        }
    },
    {"combine": {"fields": "all", "output_field": "every"}},
    {"filter_by": {"field": "n", "one_of": [1, "1", None]}},
    {"filter_by": {"field": "n", "equals": None}},
    {"filter": "builtins:bool"},
    {"apply": "copy:copy"},
]


def config(steps: object) -> PipelineConfig:
    return load_config(
        {
            "name": "x",
            "default_tokenizer": "t",
            "datasets": [{"data_files": "x", "transforms": steps}],
        }
    )


def texts(steps: object = (), **dataset: Any) -> Any:
    loaded = load_config(
        {
            "name": "x",
            "default_tokenizer": "t",
            "datasets": [{"data_files": "x", "transforms": steps, **dataset}],
        }
    )
    return resolve(loaded).sources[0].texts


def test_every_step_loads_validates_dumps_and_opens() -> None:
    loaded = config(STEPS)
    data = {"datasets": [{"data_files": "x", "transforms": STEPS}]}
    jsonschema.Draft202012Validator(json_schema()).validate(data)
    again = load_config(yaml.safe_load(dump_yaml(loaded)))
    assert again.datasets[0].transforms == loaded.datasets[0].transforms
    chain = open_chain(resolve(loaded).sources[0].texts)
    assert len(chain.steps) == len(STEPS) + 3  # `add` is a step for each field


def test_the_plain_form_goes_through_json_and_is_identity() -> None:
    source = resolve(config(STEPS)).sources[0]
    assert (
        msgspec.convert(json.loads(json.dumps(asdict(source))), type(source)) == source
    )
    other = resolve(config([*STEPS[1:], STEPS[0]])).sources[0]
    assert source_identity(source)["texts"] != source_identity(other)["texts"]
    assert texts([{"drop": "a"}]) == texts([{"drop": ["a"]}])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [{"renam": {"a": "b"}}],
            r"transforms\.0\.renam: unknown key; did you mean 'rename'\?",
        ),
        (
            [{"drop": "a"}, {}],
            r"transforms\.1: got no step, must be a mapping of exactly one of select, drop",
        ),
        ([{"select": "a", "drop": "b"}], "got select and drop, which are 2 steps"),
        ([{"select": []}], r"transforms\.0\.select: got an empty list"),
        ([{"select": 3}], r"transforms\.0\.select: got 3, must be a list"),
        ([{"select": ["a", "a"]}], "contains a name twice"),
        ([{"drop": [""]}], r"transforms\.0\.drop\.0: got ''"),
        ([{"rename": {}}], "got an empty mapping"),
        ([{"rename": {"a": "c", "b": "c"}}], "two fields would get the same new name"),
        ([{"map": {"field": "x"}}], r"map\.function: required, but missing"),
        (
            [{"map": {"feild": "x", "function": "a:b"}}],
            r"map\.feild: unknown key; did you mean 'field'\?",
        ),
        (
            [{"map": {"field": "x", "function": "upper"}}],
            "got 'upper', must be 'package.module:function'",
        ),
        ([{"apply": "a b:c"}], "got 'a b:c', must be"),
        ([{"combine": {"fields": ["a"]}}], "output_field is missing"),
        (
            [
                {
                    "combine": {
                        "fields": ["a"],
                        "source_fields": ["a"],
                        "target_field": "b",
                    }
                }
            ],
            "got both fields and source",
        ),
        (
            [{"filter_by": {"field": "a"}}],
            "got none of them, must be exactly one of equals, one_of and function",
        ),
        (
            [{"filter_by": {"field": "a", "equals": 1, "one_of": [2]}}],
            "got equals and one_of",
        ),
        ([{"add": {"a": object()}}], r"add\.a: got a value of type object"),
        (["drop"], "got 'drop', must be a mapping"),
        ({"drop": "a"}, "got a mapping, must be a list"),
    ],
)
def test_wrong_steps_say_what_got_and_expected(steps: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(steps)


def test_lists_of_values_tell_numbers_texts_and_truth_apart() -> None:
    rows = [{"n": value} for value in (1, True, "1", None, 2, 1.0)]
    kept = open_chain(
        texts([{"filter_by": {"field": "n", "one_of": [1, None]}}])
    ).on_rows(Rows(objects=rows))
    assert kept.origin.tolist() == [0, 3, 5]
    kept = open_chain(texts([{"filter_by": {"field": "n", "equals": True}}])).on_rows(
        Rows(objects=rows)
    )
    assert kept.origin.tolist() == [1]


# --- functions by name


def module_function(row: Any) -> Any:
    return row


class Holder:
    @staticmethod
    def static(row: Any) -> Any:
        return row

    @classmethod
    def of_class(cls, row: Any) -> Any:
        return row

    def method(self, row: Any) -> Any:
        return row


def _local() -> Callable[[Any], Any]:
    def inner(row: Any) -> Any:
        return row

    return inner


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (module_function, f"{__name__}:module_function"),
        (Holder.static, f"{__name__}:Holder.static"),
        (Holder.of_class, f"{__name__}:Holder.of_class"),
        (str.upper, "builtins:str.upper"),
        (len, "builtins:len"),
        (json.dumps, "json:dumps"),
        ("some.module:function", "some.module:function"),
    ],
)
def test_a_function_that_others_can_import_has_a_name(function: Any, name: str) -> None:
    found = resolved_texts(function)
    assert found.functions == (name,)
    if callable(function):
        (row,) = open_chain(found).expand({"x": "a"})
        assert row == {"x": function("a")}


def resolved_texts(function: Any) -> Any:
    """Return the settings of a dataset, one field of which goes through a function."""
    mapped = {"map": {"field": "x", "function": function}}
    dataset = DatasetConfig(data_files="x", transforms=(mapped,))  # pyright: ignore[reportArgumentType]
    return resolve_source(PipelineConfig(datasets=(dataset,)), dataset).texts


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda row: row, "a lambda has no name"),
        (_local(), "defined inside another function"),
        (Holder().method, "gives another object"),
        (functools.partial(module_function), "gives another object"),
    ],
)
def test_a_function_that_others_cannot_import_is_refused_with_what_to_do(
    function: Any, why: str
) -> None:
    dataset = DatasetConfig(data_files="x", format_callback=function)
    with pytest.raises(
        ConfigError, match=rf"{why}.*\. Define it with `def` at the top of a module"
    ):
        resolve_source(PipelineConfig(datasets=(dataset,)), dataset)
    steps = DatasetConfig(data_files="x", transforms=({"apply": function},))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=why):
        resolve_source(PipelineConfig(datasets=(steps,)), steps)


def test_what_a_notebook_defines_or_a_module_has_replaced_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def replaced(row: Any) -> Any:
        return row

    replaced.__qualname__ = "module_function"
    with pytest.raises(ConfigError, match="gives another object"):
        resolved_texts(replaced)
    replaced.__module__ = "__main__"
    monkeypatch.setattr(
        sys.modules["__main__"], "module_function", replaced, raising=False
    )
    with pytest.raises(ConfigError, match="workers do not execute"):
        resolved_texts(replaced)


def test_names_are_collected_from_everywhere_once() -> None:
    steps = [
        {"map": {"field": "a", "function": "m:one"}},
        {"filter_by": {"field": "a", "function": "m:two"}},
        {"combine": {"fields": ["a"], "output_field": "b", "combiner": "m:three"}},
        {"filter": "m:four"},
        {"apply": "m:one"},
        {"add": {"function": "m:no"}},
    ]
    dataset = DatasetConfig(data_files="x", format_callback="m:zero", transforms=steps)  # pyright: ignore[reportArgumentType]
    texts = resolve_source(PipelineConfig(datasets=(dataset,)), dataset).texts
    assert texts.functions == ("m:zero", "m:one", "m:two", "m:three", "m:four")


# --- their code


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / f"own_{abs(hash(tmp_path))}.py"
    path.write_text("def f(row):\n    return row\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def test_code_is_known_by_the_file_that_defines_it(module: Path) -> None:
    name = f"{module.stem}:f"
    plain = texts(format_callback=name)
    first = sealed(plain)
    assert first.callables[0][0] == name
    assert "callables" not in plain.identity() and first.identity() != plain.identity()
    assert msgspec.convert(json.loads(json.dumps(asdict(first))), type(first)) == first
    module.write_text("def f(row):\n    return None\n")
    assert sealed(plain).callables != first.callables
    assert sealed(texts(format_callback="builtins:len")).callables == (
        ("builtins:len", "built-in"),
    )
    assert sealed(texts()).callables == ()


def test_other_code_than_the_planned_is_never_run(module: Path) -> None:
    name = f"{module.stem}:f"
    planned = sealed(texts(format_callback=name))
    assert len(open_chain(planned).steps) == 1
    module.write_text("def f(row):\n    return None  # edited\n")
    edited = sealed(texts(format_callback=name))
    # this process still has the old code, whatever the file says by now
    with pytest.raises(
        ConfigError, match=f"the code of '{name}' differs from the planned code"
    ):
        open_chain(edited)
    importlib.reload(sys.modules[module.stem])
    assert len(open_chain(edited).steps) == 1
    with pytest.raises(ConfigError, match="differs from the planned code"):
        open_chain(planned)


def test_exceptions_of_a_function_make_bad_records_and_others_do_not() -> None:
    made = open_chain(resolved_texts("json:loads")).on_rows(
        Rows(objects=[{"x": "1"}, {"x": "y"}])
    )
    assert made.rows.objects == [{"x": 1}]
    ((row, fault),) = made.bad
    assert (row, fault.reason) == (1, "callable_raised")
    assert fault.detail.startswith("json:loads raised JSONDecodeError: Expecting value")
    for function, error in ((_interrupt, KeyboardInterrupt), (_no_memory, MemoryError)):
        with pytest.raises(error):
            open_chain(resolved_texts(function)).expand({"x": None})


def _interrupt(value: Any) -> None:
    raise KeyboardInterrupt


def _no_memory(value: Any) -> None:
    raise MemoryError


# --- what a deployment may call


@pytest.mark.parametrize(
    ("allowed", "fine"),
    [
        ({}, False),
        ({"TOKENLAKE_ALLOWED_CALLABLES": ""}, False),
        ({"TOKENLAKE_ALLOWED_CALLABLES": "other:*, os:sys*"}, True),
        ({"TOKENLAKE_ALLOWED_CALLABLES": "os:system"}, True),
        ({"TOKENLAKE_ALLOWED_CALLABLES": "os:System"}, False),
        ({"TOKENLAKE_ALLOWED_CALLABLES": "os"}, False),
    ],
)
def test_a_deployment_calls_only_what_its_worker_allows(
    allowed: dict[str, str], fine: bool
) -> None:
    wanted = config([{"map": {"field": "text", "function": "os:system"}}])
    if fine:
        policy.check_paths(wanted, allowed)
    else:
        with pytest.raises(
            ConfigError,
            match=r"'os:system' of 'dataset_0' is not allowed.*TOKENLAKE_ALLOWED_CALLABLES",
        ):
            policy.check_paths(wanted, allowed)
    policy.check_paths(config([{"drop": "a"}]), allowed)
