"""Flows of deployments whose configuration leaves something open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lazily import lazily

required: Any = lazily("tokenlake_flows.required")
tokenize: Any = lazily("tokenlake_flows.tokenize")
prefect: Any = lazily("prefect")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tokenize_files", ["data_files"]),
        ("mix_files", ["data_files", "tokenizer"]),
        ("clean_config", ["config"]),
    ],
)
def test_a_form_marks_what_a_deployment_needs(name: str, expected: list[str]) -> None:
    schema = getattr(required, name).parameters
    assert schema.required == expected
    # What is required comes first, and keeps its description.
    assert list(schema.properties)[: len(expected)] == expected
    assert all(schema.properties[parameter]["description"] for parameter in expected)


def test_the_flow_is_the_same_but_for_its_defaults() -> None:
    whole = tokenize.tokenize
    files = required.tokenize_files
    assert files.name == whole.name
    assert files.persist_result is False
    assert set(files.parameters.properties) == set(whole.parameters.properties)
    assert whole.parameters.required == []


def test_arguments_reach_the_flow_by_name() -> None:
    def add(first: int = 1, second: int = 2) -> dict[str, int]:
        return {"first": first, "second": second}

    call = required.requiring(prefect.Flow(add, name="add"), "second").fn
    assert call(5) == {"first": 1, "second": 5}
    assert call(second=5, first=3) == {"first": 3, "second": 5}
    with pytest.raises(TypeError, match="second"):
        call(first=3)


def test_deployments_name_flows_that_exist() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))[
        "deployments"
    ]
    for deployment in deployments:
        flow = prefect.flows.load_flow_from_entrypoint(deployment["entrypoint"])
        given_parameters = set(deployment.get("parameters", {}))
        assert given_parameters <= set(flow.parameters.properties)
        # Nothing that the deployment itself sets is asked for.
        assert not given_parameters & set(flow.parameters.required)
