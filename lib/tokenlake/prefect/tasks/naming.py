"""What runs are called in lists and timelines."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from prefect.runtime import flow_run

from tokenlake.prefect.tasks.request import DEFAULT, DEFAULT_MIXTURE, requested_name


def flow_run_name() -> str:
    """The name that somebody gave, else the dataset being built; a run has its number and its time already."""
    if given := given_name(flow_run.name):
        return given
    parameters = flow_run.parameters or {}
    default = DEFAULT_MIXTURE if flow_run.flow_name == "mix" else DEFAULT
    return requested_name(parameters.get("config"), parameters.get("name"), default)


def verify_run_name() -> str:
    """The name that somebody gave, else what is verified."""
    if given := given_name(flow_run.name):
        return given
    names = (flow_run.parameters or {}).get("names") or ["everything"]
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def push_run_name() -> str:
    """The name that somebody gave, else what goes where."""
    if given := given_name(flow_run.name):
        return given
    parameters = flow_run.parameters or {}
    return f"{parameters.get('name')} to {parameters.get('repo')}"


def given_name(name: str | None) -> str | None:
    """The name of a run, unless Prefect made it up: two words of its generator, such as `amber-fox`."""
    made_up = name is None or (name.count("-") == 1 and _words().issuperset(name.split("-")))
    return None if made_up else name


@cache
def _words() -> frozenset[str]:
    lists = [one for one in files("coolname").joinpath("data").iterdir() if one.name.endswith(".txt")]
    return frozenset(word for one in lists for word in one.read_text("utf-8").split())
