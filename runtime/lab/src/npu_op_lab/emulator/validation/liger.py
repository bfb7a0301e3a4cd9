"""Liger-Kernel 0.8.5's Ascend operators and what Hugging Face or PyTorch computes in their place, at the sizes of Liger's benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...peers.liger import liger_ascend
from .. import costs
from ..eager import model_eager
from ..run import emulate

_T, _H, _I = 4096, 4096, 14336  # tokens; llama_3_8b, Liger's default model
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
_BT, _V = 1024, 128256  # losses: fewer tokens than Liger sweeps, since PyTorch's own sums over them are executed here
_BF16, _F32 = torch.bfloat16, torch.float32

Make = Callable[..., torch.Tensor]  # (shape, dtype, gradient) on some device


@dataclass(frozen=True)
class Operator:
    """One row of the RFC.

    Attributes:
        name: as in the RFC.
        inputs: makes the tensors, leaves first; a tensor that needs a gradient is marked so.
        liger, eager: called with the inputs.
    """

    name: str
    inputs: Callable[[Make], Sequence[Any]]
    liger: Callable[..., Any]
    eager: Callable[..., Any]


@dataclass(frozen=True)
class Phases:
    """Modelled seconds of a forward and a backward pass."""

    forward: float
    backward: float

    @property
    def full(self) -> float:
        return self.forward + self.backward


def model(operator: Operator, soc: str, ceiling: costs.Ceiling) -> tuple[Phases, Phases]:
    """Liger's and eager's time."""
    inputs = operator.inputs(_maker("cpu"))
    with emulate(soc, values=False, ceiling=ceiling) as forward:
        outputs = _differentiable(operator.liger(*inputs))
    with emulate(soc, values=False, ceiling=ceiling) as backward:
        _backward(outputs, inputs)
    found: list[list[torch.Tensor]] = []
    inputs = operator.inputs(_maker("meta"))
    eager = model_eager(lambda: found.append(_differentiable(operator.eager(*inputs))), soc=soc, ceiling=ceiling)
    eager_backward = model_eager(lambda: _backward(found[0], inputs), soc=soc, ceiling=ceiling)
    return Phases(forward.seconds, backward.seconds), Phases(eager.seconds, eager_backward.seconds)


def _maker(device: str) -> Make:
    def make(*shape: int, dtype: torch.dtype = _BF16, gradient: bool = True) -> torch.Tensor:
        if dtype == torch.int64:
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device).requires_grad_(gradient)

    return make


def _differentiable(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]


def _backward(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    # The incoming gradients are unwritten memory: making them is no part of the pass. Nor is adding to a leaf's gradient.
    return torch.autograd.grad(outputs, _differentiable(inputs), [torch.empty_like(out) for out in outputs], allow_unused=True)


def _apply(module: str, function: str, *options: Any) -> Callable[..., Any]:
    return lambda *inputs: getattr(liger_ascend(module), function).apply(*inputs, *options)


def _llama_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = x.to(torch.promote_types(x.dtype, _F32))
    hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * hidden.to(x.dtype)


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _hf_rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _hf_mrope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = (torch.cat([m[i % 3] for i, m in enumerate(x.split([16, 24, 24] * 2, dim=-1))], dim=-1) for x in (cos, sin))
    return _hf_rope(q, k, cos, sin)


def hf_llama4_rope(q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotation of interleaved pairs by complex multiplication, as Hugging Face does it."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.to(torch.promote_types(x.dtype, _F32)).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * freqs[:, :, None, :]).flatten(3).type_as(x)

    return rotate(q), rotate(k)


def naive_poly_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """PolyNorm as its authors write it in PyTorch."""

    def norm(t: torch.Tensor) -> torch.Tensor:
        return t / torch.sqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6)

    x32 = x.to(_F32)
    return (weight[0] * norm(x32**3) + weight[1] * norm(x32**2) + weight[2] * norm(x32) + bias).to(x.dtype)


def _torch_jsd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    middle = torch.lerp(log_q.exp(), log_p.exp(), 0.5).log()
    return (
        0.5 * F.kl_div(middle, log_p, reduction="sum", log_target=True) + 0.5 * F.kl_div(middle, log_q, reduction="sum", log_target=True)
    ) / _BT


def _torch_dyt(x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None = None) -> torch.Tensor:
    out = gamma * torch.tanh(alpha * x)
    return (out if beta is None else out + beta).to(x.dtype)


def _freqs(make: Make) -> torch.Tensor:
    return torch.view_as_complex(make(1, _T, _HEAD_DIM // 2, 2, dtype=_F32, gradient=False))


def _heads(make: Make) -> list[torch.Tensor]:
    """q and k as a projection leaves them: (B, S, heads, D) seen as (B, heads, S, D)."""
    return [make(1, _T, heads, _HEAD_DIM).transpose(1, 2) for heads in (_HEADS, _KV_HEADS)]


def _probabilities(make: Make) -> list[torch.Tensor]:
    return [make(_BT, _V, dtype=_F32), make(_BT, _V, dtype=_F32, gradient=False)]


OPERATORS = (
    Operator(
        "rms_norm",
        lambda make: [make(_T, _H), make(_H, dtype=_F32)],
        _apply("rms_norm", "LigerRMSNormFunction", 1e-6, 0.0, "llama", False),
        _llama_rms_norm,
    ),
    Operator("swiglu", lambda make: [make(_T, _I), make(_T, _I)], _apply("swiglu", "LigerSiLUMulFunction"), lambda a, b: F.silu(a) * b),
    Operator(
        "geglu",
        lambda make: [make(_T, _I), make(_T, _I)],
        _apply("geglu", "LigerGELUMulFunction"),
        lambda a, b: F.gelu(a, approximate="tanh") * b,
    ),
    Operator(
        "rope",
        lambda make: [*_heads(make), *(make(1, _T, _HEAD_DIM, gradient=False) for _ in range(2))],
        _apply("rope", "LigerRopeFunction"),
        _hf_rope,
    ),
    Operator(
        "cross_entropy",
        lambda make: [make(_BT, _V, dtype=_F32), make(_BT, dtype=torch.int64)],
        lambda x, y: liger_ascend("cross_entropy").LigerCrossEntropyFunction.apply(x, y, None, -100, 0.0, 0.0, "mean", None, False)[0],
        F.cross_entropy,
    ),
    Operator("softmax", lambda make: [make(_T, _H)], _apply("softmax", "LigerSoftmaxFunction"), lambda x: torch.softmax(x, -1)),
    Operator(
        "layer_norm",
        lambda make: [make(_T, _H), make(_H), make(_H)],
        _apply("layer_norm", "LigerLayerNormFunction", 1e-6),
        lambda x, w, b: F.layer_norm(x, (_H,), w, b, 1e-6),
    ),
    Operator(
        "group_norm",
        lambda make: [make(8, _H, 512), make(_H), make(_H)],
        _apply("group_norm", "LigerGroupNormFunction", _H, _H // 4, 1e-6),
        lambda x, w, b: F.group_norm(x, _H // 4, w, b, 1e-6),
    ),
    Operator(
        "dyt_beta=False",
        lambda make: [make(_T, _H), make(1, dtype=_F32), make(_H, dtype=_F32)],
        _apply("dyt", "LigerDyTFunction", None),
        _torch_dyt,
    ),
    Operator(
        "dyt_beta=True",
        lambda make: [make(_T, _H), make(1, dtype=_F32), make(_H, dtype=_F32), make(_H, dtype=_F32)],
        _apply("dyt", "LigerDyTFunction"),
        _torch_dyt,
    ),
    Operator("jsd", _probabilities, _apply("jsd", "LigerJSDFunction", None, 0.5, -100), _torch_jsd),
    Operator(
        "kl_div",
        _probabilities,
        _apply("kl_div", "LigerKLDivLossFunction", "batchmean", False, 1e-10),
        lambda x, y: F.kl_div(x, y, reduction="batchmean"),
    ),
    Operator(
        "llama4_rope",
        lambda make: [make(1, _T, _HEADS, _HEAD_DIM), make(1, _T, _KV_HEADS, _HEAD_DIM), _freqs(make)],
        lambda q, k, freqs: liger_ascend("llama4_rope").LigerLlama4RopeFunction.apply(q, k, freqs),
        hf_llama4_rope,
    ),
    Operator(
        "poly_norm",
        lambda make: [make(_T, _H), make(3, dtype=_F32), make(dtype=_F32)],
        _apply("poly_norm", "LigerPolyNormFunction", 1e-6, False),
        naive_poly_norm,
    ),
    Operator(
        "qwen2vl_mrope",
        lambda make: [*_heads(make), *(make(3, 1, _T, _HEAD_DIM, gradient=False) for _ in range(2))],
        _apply("qwen2vl_mrope", "LigerQwen2VLMRopeFunction", [16, 24, 24]),
        _hf_mrope,
    ),
    Operator(
        "tvd",
        _probabilities,
        _apply("tvd", "LigerTVDLossFunction", None, "batchmean", -100),
        lambda p, q: 0.5 * torch.abs(p - q).sum() / _BT,
    ),
)
