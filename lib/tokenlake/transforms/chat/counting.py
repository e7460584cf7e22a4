"""What is put into a template before it is compiled, so that what it does is counted.

Every iteration and every call of a macro begins with a step that also counts the constant text inside; ``~``, slices
and literals of lists and dicts become calls that count what they make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard, final

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from tokenlake.transforms.chat.filters import made
from tokenlake.transforms.chat.generation import BEGIN, END, begin, end
from tokenlake.transforms.chat.limits import Budget
from tokenlake.transforms.chat.weights import weigh

_STEP: Final = "a step"
_ALLOWED: Final = "an iteration is allowed"
_JOIN: Final = "joined"
_MADE: Final = "made"
_BODIES: Final = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


def counted(tree: nodes.Template) -> nodes.Template:
    """Return a parsed template that counts what it does."""
    for body in list(tree.find_all(_BODIES)):
        step = _call(_STEP, nodes.Const(_constant_text(body)), body.lineno)
        body.body.insert(0, nodes.ExprStmt(step).set_lineno(body.lineno))
        if isinstance(body, nodes.For) and body.test is not None:
            body.test = nodes.And(_call(_ALLOWED, nodes.Const(0), body.lineno), body.test)
    return _Counting().visit(tree)


def _constant_text(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


def _call(name: str, value: nodes.Expr, line: int) -> nodes.Filter:
    call = nodes.Filter(value, name, [], [], None, None)
    call.set_lineno(line)
    return call


@final
class _Counting(NodeTransformer):
    """Puts counting calls around what makes values, innermost first."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            return _call(_JOIN, nodes.List(node.nodes, lineno=node.lineno), node.lineno)
        return _call(_MADE, node, node.lineno) if _makes_much(node) else node


def _makes_much(node: nodes.Node) -> TypeGuard[nodes.Expr]:
    """Whether a value is a slice, or a literal of parts that are not constant."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Slice)
    if isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return any(True for _ in node.find_all((nodes.Name, nodes.Filter, nodes.Call)))
    return False


@jinja2.pass_context
def _step(context: Any, characters: int) -> None:
    context.environment.budget.step(characters)


@jinja2.pass_context
def _allowed(context: Any, _: int) -> bool:
    context.environment.budget.step()
    return True


@jinja2.pass_context
def _join(context: Any, parts: list[Any]) -> str:
    budget: Budget = context.environment.budget
    budget.make(sum(weigh(part, budget) for part in parts))
    return "".join(map(str, parts))


@jinja2.pass_context
def _made(context: Any, value: Any) -> Any:
    """Count a slice or a literal; a literal that holds others again and again is as large as all of them."""
    budget: Budget = context.environment.budget
    if isinstance(value, list | tuple | dict):
        budget.make(_size(value, budget))
    return made(value, budget)


def _size(value: Any, budget: Budget) -> int:
    """Return the number of values inside, each as often as it is there; texts count once."""
    total, rest = 0, [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += item.values()
        elif isinstance(item, list | tuple):
            rest += item
        total += 8
        if total > budget.limits.characters >> 4:
            budget.make(budget.limits.text + 1)
    return total


COUNTERS: Final[Mapping[str, Callable[..., Any]]] = {
    BEGIN: begin,
    END: end,
    _STEP: _step,
    _ALLOWED: _allowed,
    _JOIN: _join,
    _MADE: _made,
}
"""The filters that are put in, by names that no template can spell."""
