"""Whether a chat template writes what messages say as it is, stripped of the white space around it, or as JSON, and asks nothing about it.

What such a template writes around messages depends on their roles alone, so it need not be rendered for each conversation. The proof
follows messages through the template's syntax tree, as a taint analysis does. A template is taken to look at what messages say where
it does what is not known here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Final

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer.objectives.bases.conversations.marks import GENERATION_START, GENERATION_STOP


class _Kind(Enum):
    """What an expression may be."""

    FREE = "nothing that messages say"
    CONVERSATION = "a list of messages"
    MESSAGE = "a message, with the keys role and content"
    CONTENT = "what a message says, unchanged, or nothing that messages say: roles decide which"
    TEXT = "a text that may have contents in it"
    LOOP = "the state of a loop"
    NAMESPACE = "a namespace"


_WRITTEN: Final = frozenset({_Kind.FREE, _Kind.CONTENT, _Kind.TEXT})
_TYPE_TESTS: Final = frozenset({"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number"})
_LOOP_STATE: Final = frozenset(
    {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"}
)
_FREE_FILTERS: Final = frozenset(
    (
        *("capitalize", "count", "d", "default", "first", "int", "items", "join", "last", "length", "list", "lower"),
        *("reject", "rejectattr", "replace", "reverse", "selectattr", "string", "title", "tojson", "trim", "upper"),
    )
)
"""None of them makes a `Markup`, which would escape what is added to it."""
_KNOWN_RESULTS: Final = {
    (_Kind.CONVERSATION, "length", 0): _Kind.FREE,
    (_Kind.CONVERSATION, "count", 0): _Kind.FREE,
    (_Kind.CONVERSATION, "list", 0): _Kind.CONVERSATION,
    (_Kind.CONVERSATION, "first", 0): _Kind.MESSAGE,
    (_Kind.CONVERSATION, "last", 0): _Kind.MESSAGE,
    (_Kind.CONTENT, "default", 1): _Kind.CONTENT,
    (_Kind.CONTENT, "string", 0): _Kind.CONTENT,
    (_Kind.CONTENT, "trim", 0): _Kind.TEXT,
    (_Kind.CONTENT, "strip()", 0): _Kind.TEXT,
    (_Kind.CONTENT, "tojson", 0): _Kind.TEXT,
}
"""By what a filter or a method is applied to, its name, and the number of its arguments."""
_OPERATIONS: Final = (
    *(nodes.Const, nodes.TemplateData, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice),
    *(nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Call, nodes.Getattr, nodes.Getitem),
)
"""Expressions that are free if all their parts are."""


class _DependsOnContentError(Exception):
    """A template does something else with what a message says, or may do it."""


def writes_verbatim(template: str) -> bool:
    """Whether a chat template writes messages of role and content as they are, stripped, or as JSON, whatever they say.

    This holds for messages that are not empty: templates ask whether they are.
    """
    plain = GENERATION_STOP.sub("{% endif %}", GENERATION_START.sub("{% if true %}", template))
    flow = _ContentFlow()
    try:
        tree = ImmutableSandboxedEnvironment(extensions=[loopcontrols]).parse(plain)
        while flow.learns_from(tree):
            pass
    except (_DependsOnContentError, TemplateError, RecursionError):
        return False
    return True


def describe_syntax_error(template: str) -> str | None:
    """Return where and why a chat template is no Jinja, or None."""
    plain = GENERATION_START.sub(lambda tag: "{% filter string %}" + "\n" * tag[0].count("\n"), template)
    plain = GENERATION_STOP.sub("{% endfilter %}", plain)
    try:
        ImmutableSandboxedEnvironment(extensions=[loopcontrols]).compile(plain)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}".replace("endfilter", "endgeneration")
    except (SyntaxError, RecursionError) as error:
        return str(error)
    return None


class _ContentFlow:
    """The kinds of a template's variables, each of all its values, wherever it gets them."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {"messages": _Kind.CONVERSATION}
        self._found: dict[nodes.Node, _Kind] = {}

    def learns_from(self, tree: nodes.Template) -> bool:
        """Go through a template; return whether a variable is more than was known. Raises _DependsOnContentError."""
        before = dict(self._kinds)
        self._found.clear()
        self._run(tree.body)
        return self._kinds != before

    def _run(self, statements: Iterable[nodes.Node]) -> None:
        for statement in statements:
            match statement:
                case nodes.Output(nodes=written):
                    for expression in written:
                        _require(self._kind(expression) in _WRITTEN)
                case nodes.If():
                    self._decide(statement.test)
                    self._run([*statement.body, *statement.elif_, *statement.else_])
                case nodes.For():
                    self._loop(statement)
                case nodes.Assign(target=nodes.NSRef(name=name, attr=attribute), node=value):
                    _require(self._kinds.get(name) is _Kind.NAMESPACE)
                    self._assign((name, attribute), self._kind(value))
                case nodes.Assign(
                    target=nodes.Name(name=name), node=nodes.Call(node=nodes.Name(name="namespace")) as call
                ):
                    self._make_namespace(name, call)
                case nodes.Assign(target=nodes.Name(name=name), node=value):
                    self._assign(name, self._kind(value))
                case _:
                    _require(isinstance(statement, nodes.Break | nodes.Continue))

    def _loop(self, loop: nodes.For) -> None:
        over = self._kind(loop.iter)
        _require(over in {_Kind.FREE, _Kind.CONVERSATION} and not loop.recursive)
        item = _Kind.FREE if over is _Kind.FREE else _Kind.MESSAGE
        targets = loop.target.items if isinstance(loop.target, nodes.Tuple) and item is _Kind.FREE else [loop.target]
        for target in targets:
            match target:
                case nodes.Name(name=name):
                    self._assign(name, item)
                case _:
                    raise _DependsOnContentError
        self._assign("loop", _Kind.LOOP)
        if loop.test:
            self._decide(loop.test)
        self._run([*loop.body, *loop.else_])

    def _make_namespace(self, name: str, call: nodes.Call) -> None:
        _require(not call.args and not call.dyn_args and not call.dyn_kwargs)
        self._kinds[name] = _join(self._kinds.get(name, _Kind.NAMESPACE), _Kind.NAMESPACE)
        for own in call.kwargs:
            self._assign((name, own.key), self._kind(own.value))

    def _assign(self, variable: Hashable, kind: _Kind) -> None:
        _require(kind is not _Kind.NAMESPACE)  # by its other name, what is in it would not be known
        _require(variable != "namespace")  # could be `dict` then, whose methods return what is in it
        self._kinds[variable] = _join(self._kinds.get(variable, kind), kind)

    def _decide(self, test: nodes.Node) -> None:
        """Require that what messages say does not decide whether an expression is true."""
        if isinstance(test, nodes.And | nodes.Or):
            self._decide(test.left)
            self._decide(test.right)
        elif isinstance(test, nodes.Not):
            self._decide(test.node)
        else:
            _require(self._kind(test) in {_Kind.FREE, _Kind.CONTENT, _Kind.MESSAGE, _Kind.CONVERSATION})

    def _kind(self, expression: nodes.Node) -> _Kind:
        if expression not in self._found:  # once: else, time grows exponentially with the depth of an expression
            self._found[expression] = self._find_kind(expression)
        return self._found[expression]

    def _find_kind(self, expression: nodes.Node) -> _Kind:  # noqa: PLR0911 (one for each kind of expression)
        match expression:
            case nodes.Name(name=name):
                _require(name != "lipsum")  # returns a `Markup`
                return self._kinds.get(name, _Kind.FREE)
            case nodes.Getattr(node=of, attr=key) | nodes.Getitem(node=of, arg=nodes.Const(value=str(key))):
                return self._item(expression, of, key)
            case nodes.Getitem(node=of, arg=place) if self._kind(of) is _Kind.CONVERSATION:
                self._require_free(place)
                return _Kind.CONVERSATION if isinstance(place, nodes.Slice) else _Kind.MESSAGE
            case nodes.Add() | nodes.Concat():
                kinds = {self._kind(part) for part in expression.iter_child_nodes()}
                _require(kinds <= _WRITTEN)
                return _Kind.FREE if kinds == {_Kind.FREE} else _Kind.TEXT
            case nodes.And() | nodes.Or():
                self._decide(expression.left)
                return _join(self._kind(expression.left), self._kind(expression.right))
            case nodes.Not():
                self._decide(expression.node)
                return _Kind.FREE
            case nodes.CondExpr(test=test, expr1=one, expr2=other):
                self._decide(test)
                return _join(self._kind(one), self._kind(other) if other else _Kind.FREE)
            case nodes.Test(name=name) if name in _TYPE_TESTS:
                _require(self._kind(expression.node) not in {_Kind.LOOP, _Kind.NAMESPACE})
                return _Kind.FREE
            case nodes.Filter() | nodes.Call():
                return self._result(expression)
            case nodes.Compare(expr=nodes.Const(), ops=[nodes.Operand(op="in" | "notin", expr=of)]):
                _require(self._kind(of) in {_Kind.FREE, _Kind.MESSAGE})
                return _Kind.FREE
        _require(isinstance(expression, (*_OPERATIONS, nodes.Test)))
        return self._require_free(*expression.iter_child_nodes())

    def _item(self, expression: nodes.Node, of: nodes.Node, key: str) -> _Kind:
        """Return the kind of an attribute, or of what a constant key has."""
        match kind := self._kind(of):
            case _Kind.FREE:
                return kind
            case _Kind.NAMESPACE if isinstance(expression, nodes.Getattr) and isinstance(of, nodes.Name):
                return self._kinds.get((of.name, key), _Kind.FREE)
            case _Kind.LOOP if key in {"previtem", "nextitem"}:
                return _Kind.MESSAGE
            case _Kind.LOOP if key in _LOOP_STATE:
                return _Kind.FREE
            case _Kind.MESSAGE if not hasattr(dict, key):
                return _Kind.CONTENT if key == "content" else _Kind.FREE
        raise _DependsOnContentError

    def _result(self, expression: nodes.Filter | nodes.Call) -> _Kind:
        """Return the kind of what a filter or a function returns."""
        given = [*expression.args, *expression.kwargs, *filter(None, (expression.dyn_args, expression.dyn_kwargs))]
        self._require_free(*given)
        match expression:
            case nodes.Call(node=nodes.Getattr(node=of, attr=name)):
                found = _KNOWN_RESULTS.get((self._kind(of), f"{name}()", len(given)))
                if name == "get" and given and isinstance(key := given[0], nodes.Const):
                    found = self._item(expression, of, str(key.value))
                return found or self._require_free(of)
            case nodes.Call():
                return self._require_free(expression.node)
            case nodes.Filter(node=nodes.Expr() as of, name=name):
                if found := _KNOWN_RESULTS.get((self._kind(of), name, len(given))):
                    return found
                _require(name in _FREE_FILTERS)
                return self._require_free(of)
        raise _DependsOnContentError

    def _require_free(self, *parts: nodes.Node) -> _Kind:
        _require(all(self._kind(part) is _Kind.FREE for part in parts))
        return _Kind.FREE


def _join(one: _Kind, other: _Kind) -> _Kind:
    """Return the kind of what is one or the other."""
    _require(one is other or {one, other} <= _WRITTEN)
    return one if one is other else _Kind.TEXT if _Kind.TEXT in {one, other} else _Kind.CONTENT


def _require(holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise _DependsOnContentError
