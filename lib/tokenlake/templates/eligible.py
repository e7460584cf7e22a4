"""Which templates may be run on symbols: those made of parts that either pass a content on or ask it openly.

Jinja hands some values to C code that reads a text's characters without asking the object. A template that has any
such part is not run on symbols at all; it is rendered row by row.
"""

from __future__ import annotations

from typing import Final

from jinja2 import nodes

_PARTS: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.NSRef,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.Keyword,
    nodes.For,
    nodes.If,
    nodes.CondExpr,
    nodes.Assign,
    nodes.Concat,
    nodes.Add,
    nodes.Sub,
    nodes.Mod,
    nodes.Getitem,
    nodes.Getattr,
    nodes.Slice,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Compare,
    nodes.Operand,
    nodes.Test,
    nodes.Filter,
    nodes.Call,
    nodes.ExprStmt,
    nodes.Scope,
    nodes.Break,
    nodes.Continue,
)
_METHODS: Final = frozenset({"strip", "lstrip", "rstrip"})
_FUNCTIONS: Final = frozenset({"raise_exception", "namespace", "range"})
_FILTERS: Final = frozenset({"trim", "length", "count", "first", "last", "default", "d"})
_TESTS: Final = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean"}
    | {"odd", "even", "true", "false"}
)


def is_eligible(tree: nodes.Template) -> bool:
    """Say whether a template consists of such parts alone."""
    return all(isinstance(node, _PARTS) and _is_open(node) for node in tree.find_all(nodes.Node))


def _is_open(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Call):
        return _is_known_call(node)
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS and not (node.name == "trim" and _arguments(node))
    if isinstance(node, nodes.Test):
        return node.name in _TESTS
    if isinstance(node, nodes.Compare):
        return _asks_openly(node)
    return not isinstance(node, nodes.For) or not node.recursive


def _is_known_call(node: nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if isinstance(node.node, nodes.Name):
        return node.node.name in _FUNCTIONS
    return isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS and not _arguments(node)


def _arguments(node: nodes.Call | nodes.Filter) -> bool:
    return bool(node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)


def _asks_openly(node: nodes.Compare) -> bool:
    """``x in y`` asks y; if that is a text it must not be a content that is looked for in a word of the template."""
    left: nodes.Expr = node.expr
    for operand in node.ops:
        if operand.op in ("in", "notin"):
            listed = isinstance(operand.expr, nodes.List | nodes.Tuple)
            if not listed and not isinstance(left, nodes.Const):
                return False
        left = operand.expr
    return True
