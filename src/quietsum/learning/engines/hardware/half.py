"""Products in bfloat16 whose clip still holds: what rounding may add to an example is added to its norm.

Under autocast a layer's input a and its output's gradient g come in bfloat16. Products of such numbers are exact in
float32, so they are multiplied as they are and summed in float32, at half the memory and a multiple of the speed. What
is rounded is c_i g_i (or c_i a_i), once, to bfloat16. With D_i = Σ_t ‖a_t‖ ‖g_t‖ over the positions of example i, its
part of the released sum differs from c_i Σ_t g_t a_tᵀ by at most

    Σ_t ‖fl(c_i g_t) − c_i g_t‖ ‖a_t‖  ≤  ρ c_i D_i          ρ = 2⁻⁸ (1 + 2⁻¹⁰): bfloat16 keeps 8 bits

and the norm N_i of Σ_t g_t a_tᵀ is itself known up to the rounding of float32 sums. With γ_k = k v / (1 − k v) and
v = 2⁻²³, which holds for sums of k terms in any order, truncated as tensor cores do (Higham 2002, section 3.1;
Fasi, Higham, Mikaitis, Pranesh 2021):

    ghost norm S of N²   |S − N²| ≤ γ_k D²     k = in + out + 2 T + 1 for features and T positions
    formed gradient      |M − N|  ≤ γ_T D

So with the bound U_i = √(S + γ_k D_i²) + ρ D_i, or M + (γ_T + ρ) D_i, in place of the norm, c_i = min(1, C / U_i)
gives ‖part of example i‖ ≤ c_i (N_i + ρ D_i) ≤ C. D is raised by its own rounding, sums over more than 2,048 features
are made in pieces, and a last 2⁻¹³ covers the joint norm of up to a thousand parameters and the factor. Numbers below
2⁻¹²⁶ that vanish are covered by the least length that a vector is taken for. Gradients that are formed and kept are
measured as they are released, so that they need none of this. The float32 sum over examples is what
:func:`~quietsum.learning.noise.gradient_noise.float_margin` allows for, as without autocast.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["bound_formed", "bound_ghost", "is_half", "lengths_of", "multiply_matrices", "multiply_pairs", "scale"]

_SHORTEST = 1e-13
_PIECE = 2048
_UNIT = 2.0**-23
_ROUND = 2.0**-8 * (1 + 2.0**-10)
_SLACK = 1 + 2.0**-13


def is_half(part: Tensor) -> bool:
    """Whether products are made as this module says. float16 is not: its small numbers vanish."""
    return part.dtype is torch.bfloat16


def multiply_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Batched product of bfloat16 numbers, exact products summed in float32."""
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def multiply_matrices(left: Tensor, right: Tensor) -> Tensor:
    """The same for two matrices."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float().mm(right.float())


def pair_products(part: Tensor) -> Tensor:
    """(n, t, t) products of all pairs of positions, of at most 2,048 features at a time."""
    pieces = torch.split(part, _PIECE, 2)
    found = multiply_pairs(pieces[0], pieces[0].transpose(1, 2))
    for piece in pieces[1:]:
        found += multiply_pairs(piece, piece.transpose(1, 2))
    return found


def scale(part: Tensor, factors: Tensor) -> Tensor:
    """fl(c_i · part_i), rounded once: factors in float32, (n, t, ·) in bfloat16."""
    return torch.mul(part, factors[:, None, None], out=torch.empty_like(part))


def gamma(terms: int) -> float:
    """γ_k."""
    return terms * _UNIT / (1 - terms * _UNIT)


def _terms(features: int) -> int:
    """Additions in a chain of a Gram entry."""
    return min(features, _PIECE) + features // _PIECE


def lengths_of(a: Tensor, g: Tensor, order: int = 2) -> Tensor:
    """D_i = Σ_t ‖a_t‖ ‖g_t‖ of (n, t, ·), not below its true value."""
    each = [torch.linalg.vector_norm(part, order, 2, dtype=torch.float32).clamp_(min=_SHORTEST) for part in (a, g)]
    return raise_lengths((each[0] * each[1]).sum(1), a.shape[1], a.shape[2] + g.shape[2])


def raise_lengths(lengths: Tensor, positions: int, features: int) -> Tensor:
    """Above the rounding of their own sums."""
    return lengths.mul_(1 + gamma(positions + features + 8))


def bound_formed(norms: Tensor, lengths: Tensor, positions: int, features: int) -> Tensor:
    """U from the norm of a formed gradient that is not kept."""
    return norms.mul(1 + gamma(features + 8)).add_(lengths, alpha=gamma(positions) + _ROUND).mul_(_SLACK)


def bound_ghost(left: Tensor, right: Tensor, inputs: int, outputs: int) -> Tensor:
    """U from the products a_t·a_s and g_t·g_s, (n, t, t) each; ``left`` is written to."""
    positions = left.shape[1]
    one, two = (part.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt_().clamp_(min=_SHORTEST) for part in (left, right))
    lengths = raise_lengths(one.mul_(two).sum(1), positions, inputs + outputs)
    loose = gamma(_terms(inputs) + _terms(outputs) + 2 * positions + 1)
    squared = left.mul_(right).sum(2).sum(1).clamp_(min=0)
    return squared.add_(lengths.square(), alpha=loose).sqrt_().add_(lengths, alpha=_ROUND).mul_(_SLACK)
