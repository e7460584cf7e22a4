"""Former names of options work for one release, with a note that gives the present
name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenlake
from tests.lazily import lazily
from tokenlake import PipelineConfig
from tokenlake.cli.app import main
from tokenlake.config import load_config
from tokenlake.config.resolve import identity, resolve
from tokenlake.errors import ConfigError

parameters: Any = lazily("tokenlake_flows.parameters")
prefect_logging: Any = lazily("prefect.logging")

NOTE = "tokenize.engine is now called tokenize.tokenizer_backend; the former name works in this release only"


def config_with(
    tokenize: dict[str, Any], overrides: list[str] | None = None
) -> PipelineConfig:
    """Return a configuration with a section `tokenize`."""
    dataset = {"name": "code", "data_files": "data/*.jsonl", "tokenizer": "gpt2"}
    return load_config(
        {"name": "demo", "datasets": [dataset], "tokenize": tokenize}, overrides or []
    )


@pytest.mark.parametrize(
    ("tokenize", "overrides", "backend"),
    [
        ({"engine": "words"}, [], "words"),
        ({}, ["tokenize.engine=words"], "words"),
        ({}, ["tokenize={engine: words}"], "words"),
        # An override comes last, by whichever name.
        ({"engine": "words"}, ["tokenize.tokenizer_backend=segments"], "segments"),
        ({"tokenizer_backend": "words"}, ["tokenize.engine=segments"], "segments"),
        ({"engine": "words"}, ["tokenize.engine=segments"], "segments"),
    ],
)
def test_the_former_key_sets_the_backend_and_is_noted(
    tokenize: dict[str, Any], overrides: list[str], backend: str
) -> None:
    config = config_with(tokenize, overrides)
    assert config.tokenize.tokenizer_backend == backend
    assert resolve(config, {}).notes == (NOTE,)
    # A dump has the present name alone.
    assert load_config(config).tokenize.tokenizer_backend == backend
    dumped = config.model_dump()["tokenize"]
    assert dumped["tokenizer_backend"] == backend
    assert "engine" not in dumped


def test_the_name_of_the_key_does_not_change_the_identity() -> None:
    former = resolve(config_with({"engine": "tokenizers"}), {})
    present = resolve(config_with({"tokenizer_backend": "tokenizers"}), {})
    assert identity(former) == identity(present)
    assert present.notes == ()


def test_a_wrong_value_is_reported_under_the_present_name() -> None:
    with pytest.raises(
        ConfigError,
        match=r"tokenize\.tokenizer_backend: got 'word', .*did you mean 'words'",
    ):
        config_with({"engine": "word"})


@pytest.mark.parametrize(
    "call",
    [
        lambda folder, **named: tokenlake.build_dataset(
            {
                "name": "a",
                "datasets": [{"data_files": "absent"}],
                "save": {"output_dir": str(folder)},
            },
            **named,
        ),
        lambda folder, **named: tokenlake.repair(folder, "absent", **named),
    ],
    ids=["build_dataset", "repair"],
)
def test_the_former_argument_is_warned_of_at_the_line_of_the_call(
    call: Callable[..., object], tmp_path: Path
) -> None:
    with (
        pytest.warns(FutureWarning, match="engine is now called executor") as warnings,
        pytest.raises(tokenlake.TokenlakeError),
    ):
        call(tmp_path, engine="local")
    assert warnings[0].filename == __file__
    with pytest.raises(ConfigError, match="leave engine out"):
        call(tmp_path, engine="local", executor="local")


@pytest.mark.parametrize(
    "command", [["run", "absent.yaml", "--no-prefect"], ["repair", "absent"]]
)
def test_the_former_flag_is_noted_and_not_in_the_help(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--engine", "local"]) == 2
    assert "--engine is now called --executor" in capsys.readouterr().err
    assert main([command[0], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--executor" in shown and "--engine" not in shown


def test_a_parameter_of_a_flow_may_have_its_former_name() -> None:
    with prefect_logging.disable_run_logger():
        assert parameters.present_value("engine", "store", "executor", "") == "store"
        assert parameters.present_value("engine", "store", "executor", "ray") == "ray"
        assert parameters.present_value("engine", "", "executor", "") == ""


@pytest.mark.parametrize("flow", ["tokenize", "mix"])
def test_deployments_with_former_parameters_are_accepted(flow: str) -> None:
    schema = getattr(lazily(f"tokenlake_flows.{flow}"), flow).parameters.model_dump()
    for name in ("tokenizer_engine", "engine"):
        assert schema["properties"][name]["description"].startswith("Former name of")
