"""The operator built from a model's own two norms."""

from __future__ import annotations

import torch

from npu_op_runtime.norms import norm_parameters

from .op import fused_mtp_input
from .rotation import require_rotation


class MTPInput(torch.nn.Module):
    """`fused_mtp_input` with weights and eps of two norm modules, which it shares and does not copy, and perhaps a rotation.

    Args:
        enorm, hnorm: any RMSNorm of one weight: `weight`, and `variance_epsilon` (transformers, SGLang, vLLM) or `eps` (torch.nn.RMSNorm).
        rotation, convention: as in `fused_mtp_input`; kept as a buffer that is no part of the state.

    Raises:
        TypeError, ValueError: a norm without a weight or an eps, or with a bias, or a rotation that does not fit it, by name.
    """

    rotation: torch.Tensor | None

    def __init__(
        self, enorm: torch.nn.Module, hnorm: torch.nn.Module, rotation: torch.Tensor | None = None, convention: str | None = None
    ) -> None:
        super().__init__()
        for argument, norm in (("enorm", enorm), ("hnorm", hnorm)):
            if norm_parameters(argument, norm).bias is not None:
                raise TypeError(f"{argument} must have no bias (got {norm})")
        weight = norm_parameters("hnorm", hnorm).weight
        self.enorm = enorm
        self.hnorm = hnorm
        self.convention = convention
        require_rotation(rotation, convention, weight.shape[0], weight, "hnorm")
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        enorm_weight, _, enorm_eps = norm_parameters("enorm", self.enorm)
        hnorm_weight, _, hnorm_eps = norm_parameters("hnorm", self.hnorm)
        return fused_mtp_input(
            embedding, hidden, enorm_weight, hnorm_weight,
            enorm_eps=enorm_eps, hnorm_eps=hnorm_eps, rotation=self.rotation, convention=self.convention,
        )  # fmt: skip
