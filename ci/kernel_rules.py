"""What a kernel may not use because an Ascend vector core runs it wrongly or element by element; read from its syntax tree.

Sources: the programming guide of triton-ascend 3.2.0 and what bishengir-compile 1.2.0 emits; docs/ascend.md explains each.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

_BANNED_CALLS = {
    "exp2": "use exp: base 2 has no vector instruction",
    "log2": "use log: base 2 has no vector instruction",
    "rand": "its integer arithmetic runs on the scalar unit",
    "randn": "its integer arithmetic runs on the scalar unit",
    "cumsum": "along the last axis it runs element by element",
    "atomic_add": "store one partial per core and reduce: a float sum in any order is not repeatable",
}


def violations(file: Path) -> Iterator[str]:
    """The lines of the kernels (functions decorated with `triton.jit`) that break a rule."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
            constants = {arg.arg for arg in function.args.args if arg.annotation and "constexpr" in ast.unparse(arg.annotation)}
            for node in ast.walk(function):
                if isinstance(node, ast.expr) and (reason := _reason(node, constants)):
                    yield f"{file}:{node.lineno}: {function.name}: {reason}"


def _reason(node: ast.expr, constants: Collection[str]) -> str | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        known = all(name.id in constants for name in ast.walk(node) if isinstance(name, ast.Name))
        return None if known else f"{ast.unparse(node)}: the remainder runs on the scalar unit"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    called = node.func.attr
    if called in _BANNED_CALLS:
        return f"{ast.unparse(node.func)}: {_BANNED_CALLS[called]}"
    keywords = {keyword.arg for keyword in node.keywords}
    if called == "load" and "mask" in keywords and "other" not in keywords:
        return "a masked load without other=: the lanes behind the mask hold what was there before"
    return None
