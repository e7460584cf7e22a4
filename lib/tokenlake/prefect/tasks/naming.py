"""What runs are called in lists and timelines."""

from __future__ import annotations

from prefect import runtime

from tokenlake.prefect.tasks.request import DEFAULT, DEFAULT_MIXTURE, requested_name


def flow_run_name() -> str:
    """The dataset being built; a run has its number and its time already."""
    parameters = runtime.flow_run.parameters or {}
    default = DEFAULT_MIXTURE if runtime.flow_run.flow_name == "mix" else DEFAULT
    return requested_name(parameters.get("config"), parameters.get("name"), default)


def verify_run_name() -> str:
    """What is verified."""
    names = (runtime.flow_run.parameters or {}).get("names") or ["everything"]
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def push_run_name() -> str:
    """What goes where."""
    parameters = runtime.flow_run.parameters or {}
    return f"{parameters.get('name')} to {parameters.get('repo')}"
