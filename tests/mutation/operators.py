"""Mutation operators: all small changes of a source that its tests should notice.

The changes are made in the text, at the places that the syntax tree names, so that a mutant is its source but for one
expression or statement. Annotations, docstrings, decorators, imports, `raise`, `__repr__`, f-strings, protocols and
what is there for type checkers alone stay as they are, and so does what an assertion says.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: (r"in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Arguments that change no result: how fast a kernel is, a check of lengths that are equal, and the size of a mark.
_UNSEEN = {"strict", "num_warps", "num_stages", "cache_modifier", "eviction_policy", "linewidth", "markersize", "s"}
_LOGGERS = {"logger", "logging", "log", "_log", "_logger", "warnings"}

Edit = tuple[int, int, bytes]  # where it begins and ends in the source, in bytes, and what goes there


@dataclass(frozen=True)
class Mutant:
    """A source with one change.

    Attributes:
        file: its path in the project.
        operator: the kind of change.
        lines: the first and the last line of the statement that is changed, from 1.
        inside: whether it is in a function, so that a line that runs there tells who notices.
        before, after: the changed lines as they were and as they are, stripped.
        nth: which of the file's changes that read alike, from 0.
        source: the whole mutated source.
    """

    file: str
    operator: str
    lines: tuple[int, int]
    inside: bool
    before: str
    after: str
    nth: int
    source: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from all others, also when lines above it come and go."""
        return self.file, self.before, self.after, self.nth


class _Finder:
    """All edits of one source, each with its operator, its statement and whether that is in a function."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        lines = self._bytes.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self.found: list[tuple[str, list[Edit], ast.stmt, bool]] = []

    def _begin(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> bytes:
        return self._bytes[self._begin(node) : self._end(node)]

    def _between(self, left: ast.expr, right: ast.expr, token: str) -> tuple[int, int] | None:
        """Where an operator's sign stands between its operands; comments between them are passed over."""
        start, end = self._end(left), self._begin(right)
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self._bytes[start:end])
        sign = re.search(token.encode(), gap)
        return (start + sign.start(), start + sign.end()) if sign else None

    def statements(self, body: list[ast.stmt], inside: bool) -> None:
        for statement in body:
            self._statement(statement, inside)

    def _statement(self, node: ast.stmt, inside: bool) -> None:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Global() | ast.Nonlocal() | ast.Pass():
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name == "__repr__":
                    return
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    if default is not None:
                        self._expression(default, node, inside)
                self.statements(node.body, True)
            case ast.ClassDef():
                if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                    return  # nothing of it ever runs
                self.statements(node.body, inside)
            case ast.If() if _for_checkers(node.test):
                self.statements(node.orelse, inside)
            case ast.Assert():
                self._expression(node.test, node, inside)
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Assign(value=ast.Subscript(value=ast.Name(id="Callable" | "Mapping" | "Literal"))):
                return  # a type's second name
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in _LOGGERS:
                return
            case _:
                if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.UnaryOp, ast.Constant)):
                    self._replace("negated", node.test, b"not (" + self._text(node.test) + b")", node, inside)
                self._dropped(node, inside)
                self._other_name(node, inside)
                for part in ast.iter_child_nodes(node):
                    self._part(part, node, inside)

    def _part(self, part: ast.AST, node: ast.stmt, inside: bool) -> None:
        """A direct child of a statement: another statement, a clause with statements, or an expression."""
        if isinstance(part, ast.stmt):
            self._statement(part, inside)
        elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
            if isinstance(part, ast.match_case) and part.guard is not None:
                self._expression(part.guard, node, inside)
            self.statements(part.body, inside)
        elif isinstance(part, ast.withitem):
            self._expression(part.context_expr, node, inside)
        elif isinstance(part, ast.expr) and not (isinstance(node, ast.AnnAssign) and part is node.annotation):
            self._expression(part, node, inside)

    def _add(self, operator: str, node: ast.stmt, inside: bool, *edits: Edit) -> None:
        self.found.append((operator, list(edits), node, inside))

    def _replace(self, operator: str, what: ast.expr | ast.stmt, by: str | bytes, node: ast.stmt, inside: bool) -> None:
        made = by.encode() if isinstance(by, str) else by
        self._add(operator, node, inside, (self._begin(what), self._end(what), made))

    def _dropped(self, node: ast.stmt, inside: bool) -> None:
        match node:
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                self._replace("returned", value, "None", node, inside)
            case ast.Continue() | ast.Break() | ast.Expr(value=ast.Call()):
                self._replace("dropped", node, "pass", node, inside)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                self._replace("dropped", node, "pass", node, inside)

    def _expression(self, expression: ast.expr, node: ast.stmt, inside: bool) -> None:
        match expression:
            case ast.JoinedStr():
                return  # before Python 3.12 the tree does not say where its parts are
            case ast.Lambda():
                self._expression(expression.body, node, True)
                return
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for one, sign, other in zip([left, *comparators], ops, comparators, strict=False):
                    token, opposite = _COMPARED[type(sign)]
                    if place := self._between(one, other, token):
                        self._add("compared", node, inside, (*place, opposite.encode()))
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
                token, opposite = _COMPUTED[type(operator)]
                if place := self._between(left, right, token):
                    self._add("computed", node, inside, (*place, opposite.encode()))
                for one in (left, right):
                    self._replace("alone", expression, b"(" + self._text(one) + b")", node, inside)
            case ast.BoolOp(op=joined, values=values):
                token, opposite = ("and", "or") if isinstance(joined, ast.And) else ("or", "and")
                places = [self._between(one, other, token) for one, other in pairwise(values)]
                edits = [(*place, opposite.encode()) for place in places if place]
                # In brackets, for `or` binds less than what may stand around it.
                begin, end = self._begin(expression), self._end(expression)
                self._add("joined", node, inside, (begin, begin, b"("), *edits, (end, end, b")"))
                for one in values:
                    rest = (b" %s " % ("or" if opposite == "and" else "and").encode()).join(
                        b"(" + self._text(other) + b")" for other in values if other is not one
                    )
                    self._replace("left out", expression, b"(" + rest + b")", node, inside)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._replace("not", expression, b"(" + self._text(operand) + b")", node, inside)
            case ast.Constant(value=bool() as flag):
                self._replace("constant", expression, str(not flag), node, inside)
                return
            case ast.Constant(value=int() | float() as number):
                for changed in (1,) if number == 0 else (number - 1, number + 1):
                    self._replace("constant", expression, repr(type(number)(changed)), node, inside)
                return
            case ast.Subscript(slice=index):
                self._index(index, node, inside)
                if _is_number(index):
                    self._expression(expression.value, node, inside)
                    return
            case ast.Call():
                self._call(expression, node, inside)
            case ast.IfExp(body=body, orelse=orelse):
                for one in (body, orelse):
                    self._replace("alone", expression, b"(" + self._text(one) + b")", node, inside)
        for part in ast.iter_child_nodes(expression):
            if isinstance(part, ast.expr):
                self._expression(part, node, inside)
            elif isinstance(part, ast.keyword) and part.arg not in _UNSEEN:
                self._expression(part.value, node, inside)
            elif isinstance(part, ast.comprehension):
                for one in (part.iter, *part.ifs):
                    self._expression(one, node, inside)
                for condition in part.ifs:
                    self._replace("left out", condition, "True", node, inside)

    def _index(self, index: ast.expr, node: ast.stmt, inside: bool) -> None:
        if _is_number(index):
            self._replace("index", index, {"0": "-1", "-1": "0"}.get(ast.unparse(index), "0"), node, inside)
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            if isinstance(part, ast.Slice):
                for bound in (part.lower, part.upper):
                    if bound is not None and not _is_number(bound):
                        text = self._text(bound)
                        self._replace("slice", bound, b"(" + text + b") + 1", node, inside)
                        self._replace("slice", bound, b"(" + text + b") - 1", node, inside)

    def _call(self, call: ast.Call, node: ast.stmt, inside: bool) -> None:
        if isinstance(call.func, ast.Name) and call.func.id in _OPPOSITES:
            self._replace("opposite", call.func, _OPPOSITES[call.func.id], node, inside)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "sorted" and not any(word.arg == "reverse" for word in call.keywords):
            end = self._end(call) - 1
            self._add("reversed", node, inside, (end, end, b", reverse=True"))
        match call.args:
            case [first, second, *_] if name not in ("min", "max") and not any(
                isinstance(one, ast.Starred) for one in (first, second)
            ):
                edits: list[Edit] = [
                    (self._begin(first), self._end(first), self._text(second)),
                    (self._begin(second), self._end(second), self._text(first)),
                ]
                self._add("swapped", node, inside, *edits)
        match call:
            case ast.Call(args=[ast.expr() as one], keywords=[]) if not isinstance(
                one, (ast.Starred, ast.GeneratorExp)
            ):
                self._replace("unwrapped", call, b"(" + self._text(one) + b")", node, inside)
            case ast.Call(func=ast.Attribute(value=one), args=[], keywords=[]):
                self._replace("unwrapped", call, self._text(one), node, inside)
        for word in call.keywords:
            if word.arg and word.arg not in _UNSEEN and len(call.args) + len(call.keywords) > 1:
                begin, end = self._begin(word.value) - len(word.arg) - 1, self._end(word.value)
                comma = re.match(rb"\s*,\s*", self._bytes[end:])
                before = re.search(rb",\s*$", self._bytes[:begin])
                if comma or before:
                    begin, end = (begin, end + comma.end()) if comma else (before.start() if before else begin, end)
                    self._add("unset", node, inside, (begin, end, b""))

    def _other_name(self, node: ast.stmt, inside: bool) -> None:
        """One variable of a statement in place of another: `a.keys + a.values` becomes `a.values + a.values`."""
        if isinstance(node, (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.Match)):
            return
        left = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
        left |= {id(part) for part in ast.walk(node.annotation)} if isinstance(node, ast.AnnAssign) else set()
        known = [
            one for one in ast.walk(node)
            if (isinstance(one, ast.Name) or (isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)))
            and isinstance(one.ctx, ast.Load) and id(one) not in left
        ]  # fmt: skip
        inner = {id(one.value) for one in known if isinstance(one, ast.Attribute)}
        names = [one for one in known if id(one) not in inner and one.end_lineno == one.lineno]
        for one, other in pairwise(sorted(names, key=self._begin)):
            if self._text(one) != self._text(other):
                self._replace("other name", one, self._text(other), node, inside)
                self._replace("other name", other, self._text(one), node, inside)


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def _for_checkers(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def _header(node: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, without those of the statements in it."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body and body[0].lineno > node.lineno else node.end_lineno
    return node.lineno, last or node.lineno


def mutants(source: str, file: str) -> Iterator[Mutant]:
    """Every mutant of a source; some are no program, or the same one: see :func:`another`.

    Args:
        source: Python.
        file: what the mutants call it.
    """
    finder = _Finder(source)
    finder.statements(ast.parse(source).body, inside=False)
    raw, alike = source.encode(), Counter[tuple[str, str]]()
    for operator, edits, node, inside in finder.found:
        made = raw
        for begin, end, text in sorted(edits, key=lambda edit: edit[:2], reverse=True):
            made = made[:begin] + text + made[end:]
        # The whole lines from the first change to the last.
        first = raw.rfind(b"\n", 0, min(begin for begin, _, _ in edits)) + 1
        last = raw.find(b"\n", max(end for _, end, _ in edits))
        last = len(raw) if last < 0 else last
        before, after = _joined(raw[first:last]), _joined(made[first : last + len(made) - len(raw)])
        yield Mutant(file, operator, _header(node), inside, before, after, alike[before, after], made.decode())
        alike[before, after] += 1


def _joined(lines: bytes) -> str:
    return " ".join(line.strip() for line in lines.decode().splitlines())


def another(mutant: Mutant, source: str) -> bool:
    """Whether a mutant is a program, and another than its source."""
    try:
        compile(mutant.source, mutant.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(source))
