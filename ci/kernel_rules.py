"""What a kernel may not use because an Ascend vector core runs it wrongly or element by element; read from its syntax tree.

Sources: the programming guide of triton-ascend 3.2.0 and what bishengir-compile 1.2.0 emits; docs/ascend.md explains each.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_BANNED_CALLS = {
    "exp2": "use exp: base 2 has no vector instruction",
    "log2": "use log: base 2 has no vector instruction",
    "rand": "its integer arithmetic runs on the scalar unit",
    "randn": "its integer arithmetic runs on the scalar unit",
    "cumsum": "along the last axis it runs element by element",
    "atomic_add": "store one partial per core and reduce: a float sum in any order is not repeatable",
}


# Position of the arguments of tl.load(pointer, mask, other).
_MASK, _OTHER = 1, 2


def violations(file: Path) -> Iterator[str]:
    """The lines of the kernels (functions decorated with `triton.jit`) that break a rule."""
    tree = ast.parse(file.read_text())
    imported = _imported(tree)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
            constants = {arg.arg for arg in function.args.args if arg.annotation and "constexpr" in ast.unparse(arg.annotation)}
            for node in _on_the_npu(function):
                if isinstance(node, ast.expr) and (reason := _reason(node, constants, imported)):
                    yield f"{file}:{node.lineno}: {function.name}: {reason}"


def _on_the_npu(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below `node` but the branches that only CUDA compiles: the body of `if CUDA:`, CUDA being a constexpr argument."""
    yield node
    only_cuda = isinstance(node, ast.If) and ast.unparse(node.test) == "CUDA"
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if not (only_cuda and field == "body"):
            for child in children:
                if isinstance(child, ast.AST):
                    yield from _on_the_npu(child)


def _imported(tree: ast.Module) -> dict[str, str]:
    """Functions that the file calls by a bare name: `from triton.language import exp2 as e` gives e: exp2."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton"]
    return {alias.asname or alias.name: alias.name for statement in statements for alias in statement.names}


def _reason(node: ast.expr, constants: Collection[str], imported: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        known = all(name.id in constants for name in ast.walk(node) if isinstance(name, ast.Name))
        return None if known else f"{ast.unparse(node)}: the remainder runs on the scalar unit"
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else imported.get(ast.unparse(node.func), "")
    if called in _BANNED_CALLS:
        return f"{ast.unparse(node.func)}: {_BANNED_CALLS[called]}"
    keywords = {keyword.arg for keyword in node.keywords}
    masked = "mask" in keywords or len(node.args) > _MASK
    if called == "load" and masked and not ("other" in keywords or len(node.args) > _OTHER):
        return "a masked load without other=: the lanes behind the mask hold what was there before"
    return None
