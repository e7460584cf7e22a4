"""Flows for deployments whose configuration does not name all inputs.

The form that starts a run follows from the signature of the flow, and a deployment
cannot change it. Such a deployment therefore uses a flow of this module. It has the
name, the code and the parameters of another flow, but some parameters have no default,
and the form marks them as required::

    tokenize        config = "", data_files = "", ...      demo: everything is in the configuration
    tokenize_files  data_files, config = "", ...           llama2-2048: Prefect asks for `data_files`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from prefect import Flow, flow

from tokenlake_flows.clean import clean
from tokenlake_flows.mix import mix
from tokenlake_flows.tokenize import tokenize


def requiring(original: Flow[..., Any], *names: str) -> Flow[..., Any]:
    """Return a copy of a flow, without a default for some parameters.

    Args:
        original: Flow to copy.
        names: Names of the required parameters.
    """
    function: Callable[..., Any] = original.fn
    signature = inspect.signature(function, eval_str=True)
    required: list[inspect.Parameter] = []
    optional: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in names:
            required.append(parameter.replace(default=inspect.Parameter.empty))
        else:
            optional.append(parameter)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        bound = call_signature.bind(*arguments, **options)
        return function(**bound.arguments)

    # Parameters without a default come first, as in every signature.
    call_signature = signature.replace(parameters=[*required, *optional])
    call.__signature__ = call_signature  # pyright: ignore[reportAttributeAccessIssue] - Prefect reads it
    options: Any = {"flow_run_name": original.flow_run_name, "persist_result": False}
    return flow(name=original.name, **options)(call)


tokenize_files = requiring(tokenize, "data_files")
"""Flow `tokenize` for a configuration without data."""

mix_files = requiring(mix, "data_files", "tokenizer")
"""Flow `mix` for a configuration without data and without a tokenizer."""

clean_config = requiring(clean, "config")
"""Flow `clean`, whose configuration must have a section `clean`."""
