"""The flow that mixes: its parameters as a configuration, what it refuses, and its
builds one after another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazily
from tests.rowwise.mixed_store import settings
from tests.seeds import promise
from tokenlake import load_config
from tokenlake.config import first_steps
from tokenlake.config.resolve import resolve
from tokenlake.errors import CancelledError, ConfigError
from tokenlake.etl import BuildPlanned, BuildStep, Event

policy: Any = lazily("tokenlake.runs.policy")

build_runs: Any = lazily("tokenlake.runs.build_run")
flows: Any = lazily("tokenlake_flows.mix")
requests: Any = lazily("tokenlake.runs.request")

MIXED: dict[str, Any] = {
    "name": "pile",
    "datasets": [
        {"name": "code", "data_files": "code.jsonl"},
        {"name": "web", "data_files": "web.jsonl", "tokenizer": "gpt2"},
    ],
    "default_tokenizer": "gpt2",
    "mix": {"weights": {"code": 0.25, "web": 0.75}, "epochs": 1},
    "pack": {"enabled": True, "seq_length": 64},
}


class TestRequest:
    def test_files_become_the_sources_of_a_configuration_without_data(self) -> None:
        weights = {"b": 0.5, "a": 0.5}
        with pytest.raises(
            ConfigError,
            match=r"pretrain-2048 names no data to read.*data_files='\{\"NAME\": ",
        ):
            requests.resolve_request(requests.DEFAULT_MIXTURE)
        files = {"b": "b.jsonl", "a": ["1", "2"]}
        config = requests.resolve_request(
            "pretrain-2048", files, "gpt2", weights=weights
        )
        assert [(dataset.name, dataset.data_files) for dataset in config.datasets] == [
            ("b", "b.jsonl"),
            ("a", ("1", "2")),
        ]
        assert config.mix.weights == weights
        assert list(first_steps(config)) == ["b", "a"]

    def test_files_replace_those_of_the_source_with_their_name(self) -> None:
        config = requests.resolve_request(
            MIXED, {"web": "other.jsonl"}, output="here", name="other"
        )
        assert [dataset.data_files for dataset in config.datasets] == [
            "code.jsonl",
            "other.jsonl",
        ]
        assert config.datasets[1].tokenizer == "gpt2"
        assert (config.name, config.save.output_dir) == ("other", "here")
        with pytest.raises(
            ConfigError, match=r"'wep' is not a dataset.*did you mean 'web'.*code, web"
        ):
            requests.resolve_request(MIXED, {"wep": "other.jsonl"})

    def test_weights_go_before_a_schedule_of_the_configuration(self) -> None:
        points = [{"step": 0, "weights": {"code": 0.5, "web": 0.5}}]
        given = MIXED | {"mix": {"weight_schedule": points, "epochs": 1}}
        config = requests.resolve_request(given, weights={"code": 0.1, "web": 0.9})
        assert config.mix.weight_schedule is None
        assert config.mix.weights == {"code": 0.1, "web": 0.9}


def test_a_flow_names_the_one_that_a_configuration_is_for() -> None:
    text, stored = (
        MIXED | {"mix": {}},
        {"datasets": [{"dataset": "web@v1"}], "pack": {"enabled": True}},
    )
    for config, fits, told in (
        (MIXED, "mix", r"pile mixes its datasets.*flow `mix`"),
        (text, "tokenize", r"pile mixes nothing.*flow `tokenize`"),
        (stored | {"name": "x"}, "mix", "stored datasets"),
    ):
        request = requests.resolve_request(config)
        requests.require_flow(fits, request)
        with pytest.raises(ConfigError, match=told):
            requests.require_flow("mix" if fits == "tokenize" else "tokenize", request)


@promise(336)
def test_every_parameter_explains_itself_in_the_form() -> None:
    fields = flows.mix.parameters.properties
    assert list(fields)[:3] == ["config", "data_files", "weights"]
    assert all(field["description"].endswith((".", "`")) for field in fields.values())


def test_the_deployed_mixture_is_one_of_three_sources_packed_by_best_fit() -> None:
    files = {"code": "c.jsonl", "text": "t.jsonl", "manuals": "m.jsonl"}
    config = requests.resolve_request("pretrain-2048", files, tokenizer="gpt2")
    assert (requests.DEPLOYMENTS / "pretrain-2048.yaml").is_file()
    assert sorted(config.mix.weights or {}) == sorted(
        str(dataset.name) for dataset in config.datasets
    )
    assert config.pack.strategy == "best_fit"


class TestPolicy:
    """Every step of a run is bounded by the worker's environment."""

    def check(self, config: dict[str, Any], **environment: str) -> None:
        given = {
            f"TOKENLAKE_ALLOWED_{key.upper()}": value
            for key, value in environment.items()
        }
        policy.check_paths(requests.resolve_request(config), given)

    def test_the_files_and_functions_of_every_source_are_bounded(
        self, tmp_path: Path
    ) -> None:
        files = {"code": f"{tmp_path}/a/c.jsonl", "web": f"{tmp_path}/b/*.jsonl"}
        config = requests.resolve_request(MIXED, files, output=f"{tmp_path}/out")
        allowed = {"TOKENLAKE_ALLOWED_INPUTS": f"{tmp_path}/a:{tmp_path}/b"}
        policy.check_paths(
            config, allowed | {"TOKENLAKE_ALLOWED_OUTPUTS": str(tmp_path)}
        )
        datasets = [
            MIXED["datasets"][0],
            MIXED["datasets"][1] | {"format_callback": "os:system"},
        ]
        with pytest.raises(ConfigError, match=r"the function 'os:system' of 'web'"):
            self.check(MIXED | {"datasets": datasets})
        config = requests.resolve_request(
            MIXED, {"code": f"{tmp_path}/c.jsonl", "web": "/etc/passwd"}
        )
        with pytest.raises(
            ConfigError, match=r"data_files of 'web'.*TOKENLAKE_ALLOWED_INPUTS"
        ):
            policy.check_paths(config, {"TOKENLAKE_ALLOWED_INPUTS": str(tmp_path)})

    def test_exports_and_the_repository_on_the_hub_are_bounded(
        self, tmp_path: Path
    ) -> None:
        datasets = [
            MIXED["datasets"][0] | {"save_path": f"{tmp_path}/out/code"},
            MIXED["datasets"][1],
        ]
        save = {
            "output_dir": f"{tmp_path}/lake",
            "format": "jsonl",
            "push_to_hub": True,
            "hub_repo_id": "our-org/pile",
        }
        config = MIXED | {"datasets": datasets, "save": save}
        for outputs, told in (
            ("lake", r"datasets\.code\.save_path: .* is outside"),
            (
                "lake:{}/out",
                r"save\.hub_repo_id: 'hf://datasets/our-org/pile' is outside",
            ),
        ):
            with pytest.raises(ConfigError, match=told):
                self.check(config, outputs=f"{tmp_path}/{outputs.format(tmp_path)}")
        self.check(config, outputs=f"{tmp_path}:hf://datasets/our-org")

    def test_the_store_is_bounded_also_where_all_is_stored_already(
        self, tmp_path: Path
    ) -> None:
        stored = [{"name": name, "dataset": f"{name}@v1"} for name in ("code", "web")]
        for datasets in (stored, MIXED["datasets"]):
            config = MIXED | {
                "datasets": datasets,
                "save": {"output_dir": f"{tmp_path}x"},
            }
            with pytest.raises(
                ConfigError, match=r"the store.*TOKENLAKE_ALLOWED_OUTPUTS"
            ):
                self.check(config, outputs=str(tmp_path))


class TestSteps:
    def test_a_step_travels_as_a_parameter_and_stays_what_it_was(
        self, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        steps = first_steps(load_config(settings(tmp_path, tokenizer_dir)))
        for step in steps.values():
            sent = json.loads(
                json.dumps(step.model_dump(mode="json", exclude_unset=True))
            )
            assert resolve(requests.resolve_request(sent)) == resolve(step)

    def test_a_wrong_mixture_is_said_before_any_worker_starts(
        self, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        endless = settings(tmp_path, tokenizer_dir) | {
            "mix": {"weights": {"code": 0.5, "web": 0.5}}
        }
        with pytest.raises(ConfigError, match="restart never ends"):
            build_runs.BuildRun(load_config(endless), workers=1)
        assert not (tmp_path / "store").exists()

    def test_the_builds_are_done_one_after_another_by_the_same_workers(
        self, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        told: list[Event] = []
        config = load_config(settings(tmp_path, tokenizer_dir))
        with build_runs.BuildRun(config, workers=1, on_event=told.append) as steps:
            workers: list[list[int]] = []
            for part in steps.parts():
                with part:
                    _build(part)
                workers.append(steps.pool.pids())
            _build(steps)
            workers.append(steps.pool.pids())
            assert len(workers[0]) == 1
            assert all(pids == workers[0] for pids in workers)
            result = steps.result()
        assert [event for event in told if isinstance(event, BuildStep)] == [
            BuildStep(1, 3, "tokens of code"),
            BuildStep(2, 3, "tokens of web"),
            BuildStep(3, 3, "the mixture"),
        ]
        assert [event.dataset for event in told if isinstance(event, BuildPlanned)] == [
            "pile.code.tokens",
            "pile.web.tokens",
            "pile",
        ]
        assert (result.dataset, result.manifest.seq_length) == ("pile", 64)
        assert [(p.dataset, p.version) for p in result.manifest.parents] == [
            ("pile.code.tokens", 1),
            ("pile.web.tokens", 1),
        ]

    def test_cancelling_ends_the_step_that_goes_on_and_those_that_would_follow(
        self, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        with build_runs.BuildRun(
            load_config(settings(tmp_path, tokenizer_dir)), workers=1
        ) as steps:
            todo = steps.parts()
            _build(next(todo))
            steps.cancel()
            with pytest.raises(CancelledError):
                next(todo)
        assert (
            tmp_path / "store" / "pile.code.tokens" / "v1" / "manifest.json"
        ).exists()
        assert not (tmp_path / "store" / "pile.web.tokens").exists()


def _build(build_run: Any) -> None:
    for units in build_run.groups():
        build_run.build(units, lambda line: None)
    build_run.commit()
