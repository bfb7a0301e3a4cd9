from __future__ import annotations

import math
from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st

from npu_op_grpo_loss import FusedLinearGRPOLoss, fused_linear_grpo_loss, grpo_loss
from npu_op_grpo_loss.chunks import Chunks, chunks_of
from npu_op_grpo_loss.spec import LOGITS_SPEC, SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.battery.graphs import check_opcheck, check_torch_compile
from npu_op_lab.bench.memory import PeakMemory
from npu_op_lab.execution import EAGER, available_modes
from npu_op_lab.inputs import Inputs
from npu_op_lab.passes import evaluate, forward
from npu_op_lab.watch import Recorder, ThroughOps

# One SoC of a kind here: the battery runs them all.
MODES = list({mode.kind: mode for mode in reversed(available_modes())}.values())
EXECUTED = [mode for mode in MODES if mode.executes]
PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_")
KERNELS = [mode for mode in MODES if mode.kernels]


class TestBattery(OperatorBattery):
    spec = SPEC


class TestLogitsBattery(OperatorBattery):
    spec = LOGITS_SPEC


def case_named(name, **changes):
    found = next(case for case in SPEC.cases if case.name == name)
    return replace(found, dims={**found.dims, **changes.pop("dims", {})}, options={**found.options, **changes})


# 26 tokens: chunks across sequences, with a short one at the end; several sequences a chunk; a sequence longer than a chunk; a first
# chunk of 16 tokens that is split off to save memory.
CHUNKED = (
    case_named("dapo-bfloat16", chunk_rows=16, dims={"B": 3}),
    case_named("dapo-float16", chunk_rows=16, weight_accumulation="input"),
    case_named("dapo-bfloat16", chunk_rows=16, weight_accumulation="input", dims={"B": 4}),
    case_named("bias", chunk_rows=16),
    case_named("luspo-sequence", chunk_rows=16),
    case_named("grpo-sequence", chunk_rows=32, dims={"B": 5}),
    case_named("grpo-sequence", chunk_rows=16, dims={"L": 35}),
    case_named("corrected-sequence", chunk_rows=16, dims={"L": 35}),
    case_named("dapo-bfloat16", dims={"B": 1, "L": 256, "H": 140, "V": 300}),
)


def label(case):
    return "-".join((case.name, *(f"{name}{size}" for name, size in case.dims.items())))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("case", CHUNKED, ids=label)
def test_chunks_add_up(case, mode):
    failed = [str(verdict) for verdict in evaluate(SPEC, case, mode=mode) if not verdict.passed]
    assert not failed, "\n".join(failed)


def head(vocabulary, width, dtype=torch.bfloat16):
    return torch.empty(vocabulary, width, dtype=dtype, device="meta")


ALL, NONE = (True, True, True), (False, False, False)


def test_rows_of_a_chunk():
    for by_sequence in (False, True):
        assert chunks_of(16, 1024, head(128256, 4096), 0, by_sequence, ALL) == Chunks(16384, 16384, 16384)  # four times the weight
        assert chunks_of(20, 5, head(300, 16), 0, by_sequence, ALL) == Chunks(100, 100, 100)
        assert chunks_of(0, 5, head(300, 16), 0, by_sequence, ALL) == Chunks(0, 0, 0)
    assert chunks_of(8, 1024, head(128256, 4096), 0, False, NONE).rows == 4096  # without gradients nothing asks for more
    assert chunks_of(20, 1000, head(128256, 16384), 0, False, ALL).rows == 10000  # 4 GiB would be 16736: even chunks of whole 16 rows
    assert chunks_of(20, 1001, head(128256, 16384), 0, False, ALL).rows == 10016
    assert chunks_of(700, 10, head(300, 16), 0, False, ALL).rows == 3504  # a small weight: 4 MiB would be 6990
    assert chunks_of(20, 5, head(300, 16), 40, False, ALL).rows == 32
    assert chunks_of(20, 5, head(300, 16), 1, False, ALL).rows == 16
    assert chunks_of(17, 1024, head(128256, 4096), 0, True, ALL) == Chunks(17408, 9216, 9216)  # whole sequences, evenly
    assert chunks_of(2, 18000, head(128256, 4096), 0, True, ALL) == Chunks(36000, 18000, 9008)  # each by itself


def test_as_many_tokens_as_hidden_states_are_wide_are_split_for_a_third_of_the_memory_of_eager():
    def rows(batch, dtype=torch.bfloat16, most=0, by_sequence=False, needed=ALL, splits=True):
        chunks = chunks_of(batch, 1024, head(128256, 4096, dtype), most, by_sequence, needed, splits)
        return [part.stop - part.start for group in chunks.groups() for part in group]

    assert rows(4) == [144, 3952]
    for batch in (2, 3, 5, 8, 16):  # it would take more than a sixteenth, or nothing
        assert rows(batch) == [1024 * batch]
    for no in ({"dtype": torch.float32}, {"by_sequence": True}, {"needed": NONE}, {"needed": (True, False, True)}, {"splits": False}):
        assert rows(4, **no) == [4096], no
    assert rows(4, most=4000) == [2048, 2048]  # chunk_rows: even


@hypothesis.given(
    batch=st.integers(1, 40),
    length=st.integers(1, 500),
    vocabulary=st.integers(1, 40_000),
    width=st.integers(1, 600),
    most=st.integers(0, 700),
    by_sequence=st.booleans(),
    needed=st.sampled_from((ALL, NONE)),
    splits=st.booleans(),
)
@example(5, 16, 300, 16, 32, True, ALL, False)
@example(7, 40, 300, 16, 16, True, ALL, False)
@example(1, 513, 32_000, 520, 0, False, ALL, True)  # split, with a number of tokens that no chunk starts at
def test_what_is_known_of_chunks_is_what_they_are(batch, length, vocabulary, width, most, by_sequence, needed, splits):
    chunks = chunks_of(batch, length, head(vocabulary, width), most, by_sequence, needed, splits)
    groups = list(chunks.groups())
    slices = [rows for group in groups for rows in group]
    assert [row for rows in slices for row in range(rows.start, rows.stop)] == list(range(batch * length))
    sizes = [rows.stop - rows.start for rows in slices]
    assert min(sizes) > 0
    assert max(sizes) <= chunks.rows < max(sizes) + 16
    assert not most or chunks.rows <= max(most, 16)
    assert (chunks.before, chunks.last) == (len(slices) - 1, sizes[-1])
    assert all((rows.start - group[0].start) % 16 == 0 for group in groups for rows in group)
    if by_sequence:
        assert all(group[0].start % length == 0 == group[-1].stop % length for group in groups)


@hypothesis.given(width=st.integers(256, 8192), times=st.floats(0.5, 60.0), percent=st.integers(95, 108))
@example(4096, 128256 / 4096, 100)
def test_a_split_takes_the_fewest_rows_that_give_a_third_of_the_memory_of_eager(width, times, percent):
    vocabulary, total = int(width * times), width * percent // 100
    one, split = (chunks_of(1, total, head(vocabulary, width), 0, False, ALL, splits) for splits in (False, True))
    hypothesis.assume(one.before == 0)

    def peak(first):
        return (total - first) * vocabulary + vocabulary * width + (total + first) * width

    enough = [first for first in range(0, total // 16 + 1, 16) if peak(first) <= 2 * total * vocabulary]
    assert total - split.last == (enough[0] if enough else 0)


class Largest(ThroughOps):
    """The most bytes that the memory behind a tensor within takes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def aten(self, func, args, kwargs):
        result = super().aten(func, args, kwargs)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


# One chunk, two, three of bf16 logits: what there is beside them and the gradients, in elements of the weight's gradient.
@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("level", ("token", "sequence"))
@pytest.mark.parametrize(
    ("chunk", "accumulation", "extra_bytes"),
    ((256, "float32", 0), (128, "float32", 0), (64, "float32", 4), (64, "input", 0)),
    ids=("one", "two", "four", "four-input"),
)
def test_peak_memory_is_one_chunk_and_the_gradients(chunk, accumulation, extra_bytes, level, mode):
    batch, length, width, vocabulary = 4, 64, 32, 1000
    case = case_named(
        "dapo-bfloat16",
        chunk_rows=chunk,
        importance_sampling_level=level,
        weight_accumulation=accumulation,
        dims={"B": batch, "L": length, "H": width, "V": vocabulary},
    )
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    with mode.enter(), Largest() as largest, PeakMemory(inputs.values()) as memory:
        given = memory.bytes
        done = forward(SPEC.function, case, inputs, ("hidden", "lm_head_weight"))
        between = memory.bytes - given
        done.backward({"loss": torch.ones_like(done.outputs["loss"])})
    chunks = 2 * chunk * vocabulary
    before = 2 * (batch * length - chunk) * width  # the gradient of hidden that forward makes
    states, weights = 2 * batch * length * width, 2 * vocabulary * width
    per_token = 40 * 4 * batch * length
    assert chunks <= largest.bytes <= max(chunks, extra_bytes * vocabulary * width)
    assert 0 <= memory.peak - given - (chunks + before + states + weights + extra_bytes * vocabulary * width) <= per_token
    sums = (extra_bytes or 2) * vocabulary * width if before else 0
    assert 0 <= between - (chunks + before + sums) <= per_token


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
def test_peak_memory_of_a_split_is_a_third_of_eagers(mode):
    case = case_named("dapo-bfloat16", dims={"B": 1, "L": 256, "H": 256, "V": 8000})
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    peaks = []
    for function, changes in ((SPEC.function, {}), (SPEC.function, {"chunk_rows": 256}), (SPEC.reference, {})):
        with mode.enter(), PeakMemory(inputs.values()) as memory:
            given_bytes = memory.bytes
            done = forward(function, replace(case, options={**case.options, **changes}), inputs, ("hidden", "lm_head_weight"))
            done.backward({"loss": torch.ones_like(done.outputs["loss"])})
        peaks.append(memory.peak - given_bytes)
    split, one, eager = peaks
    assert split <= eager / 3 < one


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("level", ("token", "sequence"))
def test_logits_of_the_whole_batch_never_exist(mode, level):
    batch, length, vocabulary, chunk = 4, 64, 1000, 32
    case = case_named(
        "dapo-bfloat16", chunk_rows=chunk, importance_sampling_level=level, dims={"B": batch, "L": length, "H": 16, "V": vocabulary}
    )
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    with mode.enter(), Largest() as largest:
        done = forward(SPEC.function, case, inputs, ("hidden", "lm_head_weight"))
        done.backward({"loss": torch.ones_like(done.outputs["loss"])})
    assert largest.bytes < batch * length * vocabulary  # half of them, in bf16


# Products of the pass by which gradients are needed: with one chunk, and with two, of which the first is done with in forward.
@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("names", "one", "two"),
    (
        (("hidden", "lm_head_weight", "bias"), (2, 2), (6, 2)),
        (("hidden",), (2, 1), (5, 1)),
        (("lm_head_weight",), (2, 1), (5, 1)),
        (("bias",), (2, 0), (4, 0)),
        ((), (2, 0), (4, 0)),
    ),
    ids=("all", "hidden", "weight", "bias", "none"),
)
def test_a_gradient_costs_one_product_and_only_if_it_is_needed(names, one, two, mode):
    for chunk_rows, expected in ((None, one), (16, two)):
        case = case_named("bias", chunk_rows=chunk_rows)
        inputs = SPEC.make_inputs(case, Inputs(mode.device))
        with mode.enter():
            with Recorder() as first:
                done = forward(SPEC.function, case, inputs, names)
            with Recorder() as second:
                done.backward({"loss": torch.ones_like(done.outputs["loss"])})
        assert tuple(sum(call.func._schema.name in PRODUCTS for call in recorder.calls) for recorder in (first, second)) == expected


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ("hidden", "lm_head_weight", "bias"))
def test_a_frozen_argument_of_several_chunks(name, mode):
    case = case_named("bias", chunk_rows=16)
    failed = [str(verdict) for verdict in evaluate(SPEC, case, mode=mode, frozen=(name,)) if not verdict.passed]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("case", (*CHUNKED[:3], CHUNKED[-1]), ids=label)
def test_several_chunks_in_a_compiled_graph(case):
    check_torch_compile(SPEC, case, EAGER)
    check_opcheck(SPEC, case, EAGER)


def test_nothing_is_split_in_a_compiled_graph():
    """Its backward would copy the sum that otherwise becomes the gradient."""
    inputs = SPEC.make_inputs(CHUNKED[-1], Inputs())

    def last_chunk(function):
        loss = forward(function, CHUNKED[-1], inputs, ("hidden", "lm_head_weight")).outputs["loss"]
        return loss.grad_fn.saved_tensors[0].shape[0]

    assert last_chunk(SPEC.function) == 240
    torch._dynamo.reset()
    assert last_chunk(torch.compile(SPEC.function, backend="eager", fullgraph=True)) == 256


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("level", ("token", "sequence"))
def test_masked_tokens_may_hold_anything(mode, level):
    case = case_named("grpo", importance_sampling_level=level)
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    spoilt = dict(inputs)
    masked = inputs["attention_mask"] == 0
    assert masked.any()
    spoilt["selected_ids"] = inputs["selected_ids"].masked_fill(masked, -100)
    for name in ("old_logps", "ref_logps", "vllm_is_ratio"):
        spoilt[name] = inputs[name].masked_fill(masked, math.nan)
    del spoilt["vllm_is_ratio"], inputs["vllm_is_ratio"]
    results = []
    for given in (inputs, spoilt):
        with mode.enter():
            done = forward(SPEC.function, case, given, ("hidden", "lm_head_weight"))
            results.append({**done.outputs, **done.backward({"loss": torch.ones_like(done.outputs["loss"])})})
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


# Sequences, and rows, that lie more than 2^31 elements apart, in memory of which next to nothing is touched.
@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("sizes", "strides"), (((2, 3, 40), (2**31 + 64, 40)), ((1, 6, 5000), (0, 2**29 + 16))), ids=("sequences", "rows"))
def test_offsets_above_2_to_the_31(mode, sizes, strides):
    case = replace(next(case for case in LOGITS_SPEC.cases if case.name == "dapo-bfloat16"), dims=dict(zip("BLV", sizes, strict=True)))
    inputs = LOGITS_SPEC.make_inputs(case, Inputs(mode.device))
    near = inputs["logits"]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, (*strides, 1), strict=True))
    assert span > 2**31
    far = torch.empty(span, dtype=near.dtype, device=mode.device).as_strided(sizes, (*strides, 1)).copy_(near)
    found = []
    for logits in (near, far):
        logits = logits.detach().requires_grad_()
        with mode.enter():
            result = grpo_loss(**{**inputs, "logits": logits}, **case.options)
            found.append((result.loss.detach(), *torch.autograd.grad(result.loss, logits)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# Logits of which those of the selected tokens are so far below the others that a sum of exponentials above them leaves fp32, or are not,
# side by side; a narrow row, of which several are a tile, and a wide one.
@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("vocabulary", (40, 20001))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_selected_tokens_far_below_the_others(dtype, vocabulary, mode):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, vocabulary, (2, 7), generator=generator)
    far = torch.tensor([-300.0, 0.0, 60.0, -140.0, 90.0, -3000.0, -40.0]).expand(2, 7).unsqueeze(-1)
    logits = (50.0 * torch.randn(2, 7, vocabulary, generator=generator)).scatter_(-1, ids.unsqueeze(-1), far)
    logits[:, :, 1] = -math.inf
    logits = logits.to(mode.device, dtype).requires_grad_()
    ids, mask, advantages = ids.to(mode.device), torch.ones(2, 7, device=mode.device), torch.tensor([1.0, -0.5], device=mode.device)
    with mode.enter():
        loss = grpo_loss(logits, ids, mask, advantages, beta=0.0, loss_type="cispo", epsilon_high=2.0).loss
        (gradient,) = torch.autograd.grad(loss, logits)
    exact = logits.detach().double().requires_grad_()
    logps = exact.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    expected = -(advantages.double().unsqueeze(-1) * logps).mean()
    (exact_gradient,) = torch.autograd.grad(expected, exact)
    assert math.isclose(loss.item(), expected.item(), rel_tol=1e-5)
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=tolerance, atol=1e-9)


@pytest.mark.parametrize("mode", [mode for mode in EXECUTED if mode.kernels], ids=lambda mode: mode.name)
@pytest.mark.parametrize("token", (-100, 130, 2**31 - 1))
def test_a_kept_token_outside_of_the_vocabulary_is_no_address(token, mode):
    case = case_named("grpo")
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    inputs["selected_ids"][1, 1] = token
    assert inputs["attention_mask"][1, 1] == 1
    hidden = inputs["hidden"].requires_grad_()
    with mode.enter():
        loss = fused_linear_grpo_loss(**inputs, **case.options).loss
        (gradient,) = torch.autograd.grad(loss, hidden)
    assert loss.isnan()
    assert gradient[1, 1].isnan().all()
    assert gradient.isfinite().all(-1).sum() == gradient.shape[0] * gradient.shape[1] - 1


def given_and_leaves(case, mode):
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    return inputs, [inputs[name].requires_grad_() for name in ("hidden", "lm_head_weight", "bias")]


# One chunk, two (the sum of the first is overwritten), three (it is in fp32).
BY_CHUNKS = [case_named("bias", chunk_rows=rows, dims={"B": batch}) for rows, batch in ((None, 2), (16, 2), (16, 3))]


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("case", BY_CHUNKS, ids=("one", "two", "three"))
def test_backward_twice_needs_retain_graph_and_then_gives_the_same(case, mode):
    inputs, leaves = given_and_leaves(case, mode)
    with mode.enter():
        loss = fused_linear_grpo_loss(**inputs, **case.options).loss
        results = [
            torch.autograd.grad(loss, leaves, torch.full_like(loss, factor), retain_graph=kept)
            for factor, kept in ((3.0, True), (1.0, True), (3.0, True), (3.0, False))
        ]
        assert not torch.equal(results[0][0], results[1][0])
        for again in results[2:]:
            assert all(torch.equal(one, other) for one, other in zip(results[0], again, strict=True))
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("rows", "leaf"), ((None, True), (None, False), (16, True)), ids=("one", "not-a-leaf", "two"))
def test_autograd_asked_for_one_input_makes_no_product_of_another(rows, leaf, mode):
    case = case_named("bias", chunk_rows=rows)
    inputs, leaves = given_and_leaves(case, mode)
    given = leaves if leaf else [tensor * 1 for tensor in leaves]
    inputs.update(zip(("hidden", "lm_head_weight", "bias"), given, strict=True))
    with mode.enter():
        loss = fused_linear_grpo_loss(**inputs, **case.options).loss
        together = torch.autograd.grad(loss, given, retain_graph=True)
        for wanted, gradient, products in zip(given, together, (1, 1, 0), strict=True):
            with Recorder() as recorder:
                (alone,) = torch.autograd.grad(loss, wanted, retain_graph=True)
            assert sum(call.func._schema.name in PRODUCTS for call in recorder.calls) == products
            assert not mode.executes or torch.equal(alone, gradient)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("case", BY_CHUNKS, ids=("one", "two", "three"))
def test_saved_tensors_may_be_packed(case, mode):
    """As by save_on_cpu: what backward gets is another tensor."""
    inputs, leaves = given_and_leaves(case, mode)
    with mode.enter():
        expected = torch.autograd.grad(fused_linear_grpo_loss(**inputs, **case.options).loss, leaves)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            loss = fused_linear_grpo_loss(**inputs, **case.options).loss
        found = [torch.autograd.grad(loss, leaves, retain_graph=kept) for kept in (True, False)]
    for gradients in found:
        assert all(torch.equal(one, other) for one, other in zip(expected, gradients, strict=True))


def test_a_weight_changed_between_the_passes_is_noticed():
    inputs, leaves = given_and_leaves(BY_CHUNKS[0], EAGER)
    loss = fused_linear_grpo_loss(**inputs, **BY_CHUNKS[0].options).loss
    with torch.no_grad():
        inputs["lm_head_weight"].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("rows", (None, 16))
def test_autocast_changes_nothing(rows, mode):
    case = case_named("dapo-float32", chunk_rows=rows)
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    leaves = [inputs[name].requires_grad_() for name in ("hidden", "lm_head_weight")]
    results = []
    for enabled in (False, True):
        with mode.enter(), torch.autocast(mode.device, torch.bfloat16, enabled=enabled):
            loss = fused_linear_grpo_loss(**inputs, **case.options).loss
            results.append((loss.detach(), *torch.autograd.grad(loss, leaves)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_fp16_gradients_survive_a_loss_scaler(mode):
    """Without a scale of its own the gradient of a logit, probability / tokens, would be flushed before the scaler's factor arrives."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 8, 16, generator=generator).to(mode.device, torch.float16).requires_grad_()
    weight = (0.1 * torch.randn(3000, 16, generator=generator)).to(mode.device, torch.float16).requires_grad_()
    ids, mask = torch.zeros(1, 8, dtype=torch.int64, device=mode.device), torch.ones(1, 8, device=mode.device)
    advantages, count = torch.ones(1, device=mode.device), 20_000
    with mode.enter():
        loss = fused_linear_grpo_loss(hidden, weight, ids, mask, advantages, beta=0.0, num_items_in_batch=count).loss
        (gradient,) = torch.autograd.grad(loss, weight, torch.full_like(loss, 2.0**16))
    probabilities = (hidden.detach().double() @ weight.detach().double().T).softmax(-1)
    exact = (2.0**16 / count) * (probabilities - torch.nn.functional.one_hot(ids, 3000)).flatten(0, 1).T @ hidden.detach().double()[0]
    error = (gradient.double() - exact)[1:].norm() / exact[1:].norm()
    assert error < 0.02


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("rows", (None, 128))
def test_fp16_gradients_of_a_loss_that_no_number_of_tokens_divides_do_not_overflow(rows, mode):
    """A weight's gradient of 512 tokens times 4 is a number of fp16, but not 256 times of it; no loss scaler could mend that."""
    hidden = torch.full((1, 512, 8), 4.0, dtype=torch.float16, device=mode.device, requires_grad=True)
    weight = torch.zeros(50, 8, dtype=torch.float16, device=mode.device, requires_grad=True)
    ids, mask = torch.zeros(1, 512, dtype=torch.int64, device=mode.device), torch.ones(1, 512, device=mode.device)
    with mode.enter():
        result = fused_linear_grpo_loss(hidden, weight, ids, mask, mask[:, 0], beta=0.0, loss_type="luspo", chunk_rows=rows)
        (gradient,) = torch.autograd.grad(result.loss, weight)
    expected = torch.full((50, 8), 512 * 4 / 50, dtype=torch.float64)
    expected[0] -= 512 * 4
    torch.testing.assert_close(gradient.double().cpu(), expected, rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_a_reference_model_that_requires_gradients_gets_none(mode):
    case = case_named("bias")
    inputs = SPEC.make_inputs(case, Inputs(mode.device))
    for name in ("ref_hidden", "ref_weight", "ref_bias"):
        inputs[name].requires_grad_()
    with mode.enter():
        assert not fused_linear_grpo_loss(**inputs, **case.options).loss.requires_grad
        inputs["hidden"].requires_grad_()
        fused_linear_grpo_loss(**inputs, **case.options).loss.backward()
    assert inputs["hidden"].grad is not None
    assert inputs["ref_weight"].grad is None


def test_module_is_the_function():
    case = case_named("sapo")
    inputs = SPEC.make_inputs(case, Inputs())
    module = FusedLinearGRPOLoss(**case.options)
    assert all(
        torch.equal(one, other) for one, other in zip(module(**inputs), fused_linear_grpo_loss(**inputs, **case.options), strict=True)
    )
    assert "loss_type='sapo'" in repr(module)


def test_an_int_of_items_is_a_tensor_of_items():
    case = case_named("cispo")
    inputs = SPEC.make_inputs(case, Inputs())
    expected = fused_linear_grpo_loss(**inputs, **case.options).loss
    assert torch.equal(fused_linear_grpo_loss(**{**inputs, "num_items_in_batch": 40}, **case.options).loss, expected)


def test_without_a_kl_term_there_is_no_kl():
    case = case_named("dr_grpo")
    assert fused_linear_grpo_loss(**SPEC.make_inputs(case, Inputs()), **case.options).kl is None


def arguments(**changes):
    given = {
        "hidden": torch.randn(2, 3, 4),
        "lm_head_weight": torch.randn(7, 4),
        "selected_ids": torch.zeros(2, 3, dtype=torch.int64),
        "attention_mask": torch.ones(2, 3),
        "advantages": torch.ones(2),
        "ref_logps": torch.zeros(2, 3),
    }
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    (
        ({"hidden": torch.ones(3, 4)}, ValueError, r"hidden must have three dimensions, .* \(got shape \(3, 4\)\)"),
        ({"hidden": [1]}, TypeError, r"hidden must be a torch.Tensor \(got list\)"),
        ({"lm_head_weight": torch.ones(7, 5)}, ValueError, r"lm_head_weight must have shape \(vocabulary, 4\) \(got \(7, 5\)\)"),
        ({"lm_head_weight": torch.ones(7, 4).half()}, TypeError, r"lm_head_weight must have dtype float32 \(got float16\)"),
        ({"bias": torch.ones(6)}, ValueError, r"bias must have shape \(7,\) \(got \(6,\)\)"),
        ({"selected_ids": torch.ones(2, 3)}, TypeError, r"selected_ids must have dtype int64 or int32 \(got float32\)"),
        ({"attention_mask": torch.ones(2, 4)}, ValueError, r"attention_mask must have shape \(2, 3\) \(got \(2, 4\)\)"),
        ({"advantages": torch.ones(3)}, ValueError, r"advantages must have shape \(2,\) \(got \(3,\)\)"),
        ({"advantages": torch.ones(2, 1)}, ValueError, r"advantages must have shape \(2, 3\) \(got \(2, 1\)\)"),
        ({"ref_logps": None}, ValueError, r"ref_logps, or ref_hidden and ref_weight, must be given unless beta is 0 \(got None\)"),
        ({"ref_hidden": torch.ones(2, 3, 4)}, ValueError, r"ref_weight must be given with ref_hidden \(got None\)"),
        ({"ref_bias": torch.ones(7)}, ValueError, "ref_bias must come with ref_hidden and ref_weight"),
        (
            {"ref_hidden": torch.ones(2, 3, 4), "ref_weight": torch.ones(7, 4)},
            ValueError,
            "ref_logps must be None where ref_hidden is given",
        ),
        (
            {"ref_logps": None, "ref_hidden": torch.ones(2, 3, 4), "ref_weight": torch.ones(8, 4)},
            ValueError,
            r"ref_weight must have the vocabulary of lm_head_weight, 7 rows \(got 8\)",
        ),
        ({"old_logps": torch.ones(2)}, ValueError, r"old_logps must have shape \(2, 3\) \(got \(2,\)\)"),
        ({"vllm_is_ratio": torch.ones(3)}, ValueError, r"vllm_is_ratio must have shape \(2,\), \(2, 1\) or \(2, 3\) \(got \(3,\)\)"),
        ({"num_items_in_batch": torch.ones(2)}, ValueError, r"num_items_in_batch must have shape \(\) \(got \(2,\)\)"),
        ({"num_items_in_batch": "2"}, TypeError, r"num_items_in_batch must be a number \(got '2'\)"),
        ({"loss_type": "ppo"}, ValueError, r"loss_type must be one of 'grpo', .* \(got 'ppo'\)"),
        ({"importance_sampling_level": "word"}, ValueError, r"importance_sampling_level must be one of 'token', 'sequence' \(got 'word'\)"),
        ({"loss_type": "dr_grpo"}, ValueError, r"max_completion_length must be given for loss_type 'dr_grpo' \(got None\)"),
        ({"max_completion_length": 0}, ValueError, r"max_completion_length must be at least 1 \(got 0\)"),
        ({"temperature": 0.0}, ValueError, r"temperature must be positive \(got 0.0\)"),
        ({"delta": -1.0}, ValueError, r"delta must be positive \(got -1.0\)"),
        ({"beta": "0.1"}, TypeError, r"beta must be a number \(got '0.1'\)"),
        ({"use_bias_correction_kl": 1}, TypeError, r"use_bias_correction_kl must be a bool \(got 1\)"),
        ({"chunk_rows": 0}, ValueError, r"chunk_rows must be at least 1 \(got 0\)"),
        ({"weight_accumulation": "bf16"}, ValueError, r"weight_accumulation must be one of 'float32', 'input' \(got 'bf16'\)"),
        ({"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
        ({"implementation": "vendor"}, NotImplementedError, "torch_npu has no GRPO loss"),
    ),
)
def test_wrong_arguments_are_named(changes, error, message):
    with pytest.raises(error, match=message):
        fused_linear_grpo_loss(**arguments(**changes))


def test_wrong_options_are_named_at_construction():
    for options, message in (({"loss_type": "dr_grpo"}, "max_completion_length must be given"), ({"chunk_rows": 0}, "chunk_rows must be")):
        with pytest.raises(ValueError, match=message):
            FusedLinearGRPOLoss(**options)


def test_logits_need_reference_log_probabilities_unless_beta_is_0():
    given = arguments(hidden=None, lm_head_weight=None, ref_logps=None)
    with pytest.raises(ValueError, match=r"ref_logps must be given unless beta is 0 \(got None\)"):
        grpo_loss(torch.randn(2, 3, 7), **given)
    assert grpo_loss(torch.randn(2, 3, 7), **given, beta=0.0).kl is None


def test_eager_by_name_is_the_reference():
    case = case_named("grpo")
    inputs = SPEC.make_inputs(case, Inputs())
    named = fused_linear_grpo_loss(**inputs, **case.options, implementation="eager")
    expected = SPEC.reference(**inputs, **case.options)
    assert all(torch.equal(one, other) for one, other in zip(named, expected, strict=True))
