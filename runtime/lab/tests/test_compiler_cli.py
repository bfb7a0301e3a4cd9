"""`npu-lab compile`: installed operators in worker processes, a user's own file, exit status and JSON."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from npu_op_lab import operators
from npu_op_lab.cli import main
from npu_op_lab.compiler.cases import compile_cases

_SOURCE = """
    import torch, triton, triton.language as tl
    from npu_op_runtime.device import target_of
    from npu_op_runtime.spec import Case, OperatorSpec, Traffic

    @triton.jit(do_not_specialize=["n"])
    def scale(X, Y, n, BLOCK: tl.constexpr):
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(Y + at, tl.load(X + at, mask=at < n, other=0.0) * 2.0, mask=at < n)

    @triton.jit(do_not_specialize=["n"])
    def unscale(X, Y, n, BLOCK: tl.constexpr):
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(Y + at, tl.load(X + at, mask=at < n, other=0.0) * 0.5, mask=at < n)

    def launched(kernel, x, block):
        y = torch.empty_like(x)
        kernel[(target_of(x).cores,)](x, y, x.numel(), BLOCK=block)
        return y

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, block):
            ctx.block = block
            return launched(scale, x, block)

        @staticmethod
        def backward(ctx, dy):
            return launched(unscale, dy, ctx.block), None

    SPEC = OperatorSpec(
        name="double",
        cases=(
            Case("small", {"T": 5000}, "float32"),
            # 2 GiB a tensor: only memory that nothing touches.
            Case("huge", {"T": 2**29}, "float32", tags=frozenset({"bench"})),
            Case("inference", {"T": 5000}, "float32", tags=frozenset({"values", "gradient-free"})),
            Case("over half the UB", {"T": 5000}, "float32", {"block": 32768}),
            Case("over the UB", {"T": 5000}, "float32", {"block": 65536}),
            Case("empty", {"T": 0}, "float32"),
            Case("eager", {"T": 5000}, "float32", {"block": 0}),
        ),
        make_inputs=lambda case, factory: {"x": factory.randn(case.dims["T"], dtype=case.torch_dtype)},
        function=lambda x, block=4096: Double.apply(x, block) if block and x.numel() else x * 2.0,
        reference=lambda x, block=4096: x * 2.0,
        differentiable=("x",),
        traffic=lambda case: Traffic(8 * case.dims["T"], 8 * case.dims["T"]),
        bench_case=lambda model, tokens: Case("bench", {"T": tokens}),
        socs=("Ascend910B1", "Ascend910B4"),
    )
"""

_FILE = """
    import sys, torch, triton, triton.language as tl

    @triton.jit
    def copy(X, Y, n, BLOCK: tl.constexpr):
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(Y + at, tl.load(X + at, mask=at < n, other=0.0), mask=at < n)

    def go(block):
        x = torch.empty(100_000)
        copy[(40,)](x, torch.empty_like(x), x.numel(), BLOCK=block)
"""

_BROKEN = "@triton.jit\ndef broken(X):\n    tl.store(X, undefined)\ndef main():\n    broken[(1,)](torch.empty(1))\n"


@pytest.fixture(autouse=True)
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed operator named `double`, and a cache of its own; worker processes inherit both."""
    site = tmp_path / "site"
    info = site / "npu_op_double-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: npu-op-double\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[npu_ops]\ndouble = double_spec:SPEC\n")
    (site / "double_spec.py").write_text(textwrap.dedent(_SOURCE))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def _user_file(folder: Path, tail: str) -> str:
    file = folder / "mine.py"
    file.write_text(textwrap.dedent(_FILE) + textwrap.dedent(tail))
    return str(file)


def test_operators_are_found_by_entry_point():
    assert "double" in operators.names()
    assert operators.load("double").name == "double"
    with pytest.raises(ValueError, match=r"one of the installed ones: .*double.* \(got 'treble'\)"):
        operators.load("treble")


def test_cases_compile_forward_and_backward_in_worker_processes():
    reports = compile_cases(["double"], cases=["small", "huge", "inference"], jobs=2)
    assert [(report.case, report.soc) for report in reports] == [
        (case, soc) for case in ("small", "huge", "inference") for soc in ("Ascend910B1", "Ascend910B4")
    ]
    assert [[kernel.kernel for kernel in report.kernels] for report in reports] == [["scale", "unscale"]] * 4 + [["scale"]] * 2
    # One compile per kernel and SoC, whatever the case.
    assert len({kernel.key for report in reports for kernel in report.kernels}) == 4
    assert not any(report.violations for report in reports)


def test_an_operator_on_the_command_line_writes_table_and_json(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["compile", "double", "--soc", "910B4", "--case", "small", "--jobs", "1", "--json", str(out)]) == 0
    (report,) = json.loads(out.read_text())
    assert (report["source"], report["case"], report["soc"], report["violations"]) == ("double", "small", "Ascend910B4", [])
    scale, unscale = report["kernels"]
    assert (scale["kernel"], unscale["kernel"], scale["double_buffered"]) == ("scale", "unscale", True)
    (loop,) = scale["loops"]
    assert loop["hot"] and loop["vector_ops"] == {"vmul": 1}
    assert [(move["direction"], move["bytes"], move["buffers"]) for move in loop["transfers"]] == [("in", 16384, 2), ("out", 16384, 2)]
    printed = capsys.readouterr().out
    assert "unscale" in printed and "double_spec.py:8" in printed and "VIOLATION" not in printed


def test_a_case_that_launches_no_kernel_fails_unless_it_is_empty():
    empty, eager = compile_cases(["double"], ["910B4"], ["empty", "eager"], jobs=1)
    assert (empty.kernels, empty.violations) == ((), ())
    assert eager.violations == ("double, case eager, for Ascend910B4: no kernel was launched",)


def test_violations_of_an_operator_are_named_and_fail(capsys):
    assert main(["compile", "double", "--soc", "910B4", "--case", "over half the UB", "--case", "over the UB", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "scale for Ascend910B4: the compiler dropped double buffering" in printed
    assert "scale for Ascend910B4: UB overflow" in printed


@pytest.mark.parametrize(
    "tail",
    [
        "def launch():\n    go(4096)\ndef main():\n    raise AssertionError('launch comes first')\n",
        "def main():\n    go(4096)\nif __name__ == '__main__':\n    raise AssertionError('main comes first')\n",
        "if __name__ == '__main__':\n    assert sys.argv == [__file__]\n    go(4096)\n",
        "go(4096)\n",
    ],
)
def test_a_users_file_is_compiled_for_every_soc(tmp_path, capsys, tail):
    out = tmp_path / "out.json"
    assert main(["compile", _user_file(tmp_path, tail), "--soc", "Ascend910B4", "--soc", "910_9391", "--json", str(out)]) == 0
    reports = json.loads(out.read_text())
    assert [(report["soc"], [kernel["kernel"] for kernel in report["kernels"]]) for report in reports] == [
        ("Ascend910B4", ["copy"]),
        ("Ascend910_9391", ["copy"]),
    ]
    assert "mine.py:6" in capsys.readouterr().out


def test_a_users_file_that_does_not_fit_fails(tmp_path, capsys):
    assert main(["compile", _user_file(tmp_path, "def main():\n    go(65536)\n"), "--soc", "910B4"]) == 1
    assert "copy for Ascend910B4: UB overflow" in capsys.readouterr().out


def test_a_users_file_that_triton_refuses_fails(tmp_path, capsys):
    assert main(["compile", _user_file(tmp_path, _BROKEN), "--soc", "910B4"]) == 1
    assert "undefined is not defined" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["compile", "emulate", "explain"])
@pytest.mark.parametrize(
    ("tail", "line", "error"),
    [
        ("def main():\n    1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def main(:\n    pass\n", 1, "SyntaxError: invalid syntax"),
        ("def main():\n    pass\nimport not_there\n", 3, "ModuleNotFoundError: No module named 'not_there'"),
        ("def launch():\n    torch.empty(2).view(3)\n", 2, "RuntimeError: shape '[3]' is invalid"),
        ("if __name__ == '__main__':\n    sys.exit(3)\n", 2, "exit with status 3"),
    ],
)
def test_an_error_of_the_users_file_names_its_line(tmp_path, capsys, command, tail, line, error):
    file = _user_file(tmp_path, tail)
    assert main([command, file, "--soc", "910B4"]) == 2
    start = textwrap.dedent(_FILE).count("\n")
    assert capsys.readouterr().err.startswith(f"npu-lab {command}: {file}:{start + line}: {error}")


def test_a_users_file_may_exit(tmp_path):
    assert main(["compile", _user_file(tmp_path, "if __name__ == '__main__':\n    go(4096)\n    sys.exit(0)\n"), "--soc", "910B4"]) == 0


@pytest.mark.parametrize("command", ["emulate", "explain"])
@pytest.mark.parametrize(
    ("tail", "fault"),
    [
        ("def main():\n    go(65536)\n", "copy for Ascend910B4: UB overflow"),
        (
            "@triton.jit\ndef broken(X):\n    tl.store(X, undefined)\ndef main():\n    broken[(1,)](torch.empty(1))\n",
            "undefined is not defined",
        ),
        (
            "@triton.jit\ndef past(X):\n    tl.store(X + 64 + tl.arange(0, 64), 1.0)\ndef main():\n    past[(1,)](torch.empty(64))\n",
            "past at mine.py:15: hivm.hir.store of program 0 touches bytes",
        ),
    ],
)
def test_a_kernel_that_does_not_run_is_a_fault_in_words(tmp_path, capsys, command, tail, fault):
    assert main([command, _user_file(tmp_path, tail), "--soc", "910B4"]) == 1
    printed = capsys.readouterr().out
    assert "FAULT" in printed and fault in printed


@pytest.mark.parametrize("command", ["compile", "emulate", "explain"])
def test_a_users_file_that_launches_nothing_is_refused(tmp_path, capsys, command):
    file = _user_file(tmp_path, "def main():\n    pass\n")
    assert main([command, file, "--soc", "910B4"]) == 2
    assert f"{file} launched no kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"), [("compile", "--json"), ("emulate", "--trace"), ("emulate", "--png"), ("validate", "--out")]
)
@pytest.mark.parametrize("place", ["missing/out", "."])
def test_where_the_output_goes_is_checked_before_any_work(tmp_path, monkeypatch, capsys, command, option, place):
    monkeypatch.chdir(tmp_path)
    target = [] if command == "validate" else [_user_file(tmp_path, "raise AssertionError('the file was run')\n")]
    with pytest.raises(SystemExit) as stop:
        main([command, *target, option, place])
    assert stop.value.code == 2
    assert f"argument {option}: must be a file in a folder that exists (got '{place}')" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["treble"], "must be a .py file or an installed operator"),
        (["nowhere.py"], "must be a .py file or an installed operator"),
        (["double", "--soc", "910C9"], "soc must be one of Ascend910B1"),
        (["double", "--jobs", "0"], "must be a whole number of at least 1 (got '0')"),
        (
            ["double", "--case", "tiny"],
            "case of double must be one of small, huge, inference, over half the UB, over the UB, empty, eager (got tiny)",
        ),
        (["idle.py"], "launched no kernel"),
    ],
)
def test_wrong_arguments_name_what_is_allowed(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("idle.py").write_text("def main():\n    pass\n")
    try:
        status = main(["compile", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_help_tells_the_convention_of_a_users_file(capsys):
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    assert "its function `launch`, else `main`, is called without arguments" in capsys.readouterr().out
