"""Scattering features: what wavelets see in an image, in two orders. Nothing is learned, so nothing is spent.

A private linear model on good features beats a private network that must learn its features from noisy gradients
(Tramèr, Boneh 2021, "Differentially Private Learning Needs (Much) Better Features"). The scattering transform (Bruna,
Mallat 2013) needs no data: with ψ Morlet wavelets of L orientations at the scales 1 and 2, and φ a Gaussian,

    S₀ = x ⋆ φ        S₁ = |x ⋆ ψ_{j,θ}| ⋆ φ        S₂ = ||x ⋆ ψ_{1,θ}| ⋆ ψ_{2,θ'}| ⋆ φ

each kept at every fourth pixel: 1 + 2L + L² channels. Every image is transformed by itself with public constants.

>>> images = torch.rand(3, 28, 28)
>>> features = scattering(images)
>>> tuple(features.shape), bool(torch.allclose(features[1:2], scattering(images[1:2]), atol=1e-5))
((3, 81, 8, 8), True)
"""

from __future__ import annotations

import functools
import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, pad

from quietsum.errors import InvalidParameter

__all__ = ["CHANNELS", "FEATURES", "ORIENTATIONS", "Widen", "linear_on_features", "scattering", "scattering_features"]

ORIENTATIONS = 8
CHANNELS = 1 + 2 * ORIENTATIONS + ORIENTATIONS**2
FEATURES = CHANNELS * 64

_SIDE, _KEPT = 32, 8  # 28 × 28 images lie on a torus of 32 × 32, mirrored at their edges; 8 × 8 pixels are kept
_SLANT = 4 / ORIENTATIONS
_LOW = 1.6  # the width of φ in pixels
_GROUPS = 27  # of the 81 channels
_FAINT = 1e-3  # what the logarithm adds, about a quarter of one grey value in 255


@functools.cache
def _morlet(width: float, angle: float, frequency: float) -> Tensor:
    """ψ in frequency: a wave under an elongated Gaussian, less what gives it a mean."""
    line = torch.arange(_SIDE, dtype=torch.float64)
    envelope = torch.zeros(_SIDE, _SIDE, dtype=torch.float64)
    wave = torch.zeros(_SIDE, _SIDE, dtype=torch.complex128)
    for down in (-2, -1, 0, 1):  # periods of the torus
        for right in (-2, -1, 0, 1):
            y, x = (line + down * _SIDE)[:, None], (line + right * _SIDE)[None, :]
            along = math.cos(angle) * x + math.sin(angle) * y
            across = math.cos(angle) * y - math.sin(angle) * x
            bump = torch.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * width * width))
            envelope += bump
            wave += bump * torch.exp(1j * frequency * along)
    balanced = wave - wave.sum() / envelope.sum() * envelope
    spectrum: Tensor = torch.fft.fft2(balanced * _SLANT / (2 * math.pi * width * width))
    return spectrum.real.to(torch.float32)


@functools.cache
def _wavelets() -> tuple[Tensor, Tensor]:
    """ψ at scale 1 on 32 × 32 frequencies, and at scale 2 on the 16 × 16 lowest of them: (L, side, side) each."""
    angles = [(ORIENTATIONS // 2 - 1 - turn) * math.pi / ORIENTATIONS for turn in range(ORIENTATIONS)]
    fine = torch.stack([_morlet(0.8, angle, 3 * math.pi / 4) for angle in angles])
    coarse = torch.stack([_morlet(1.6, angle, 3 * math.pi / 8) for angle in angles])
    return fine, _lowest(coarse) / 4


def _lowest(spectrum: Tensor) -> Tensor:
    """The lower half of the frequencies along both axes: the image at every second pixel."""
    quarter = _SIDE // 4
    kept = torch.cat([torch.arange(quarter), torch.arange(_SIDE - quarter, _SIDE)])
    return spectrum[..., kept, :][..., kept]


@functools.cache
def _smoother(side: int) -> Tensor:
    """φ and the choice of 8 pixels a line as one (8, side) matrix: a Gaussian is a product of rows and columns."""
    places = torch.arange(_KEPT, dtype=torch.float64) * (side / _KEPT)
    apart = (torch.arange(side, dtype=torch.float64) - places[:, None] + side / 2).remainder(side) - side / 2
    width = _LOW * side / _SIDE
    weights = torch.stack([torch.exp(-((apart + turn * side) ** 2) / (2 * width * width)) for turn in (-1, 0, 1)]).sum(
        0
    )
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32)


def _smooth(images: Tensor) -> Tensor:
    matrix = _smoother(images.shape[-1])
    return matrix @ images @ matrix.T


def scattering(images: Tensor, block: int = 100, dtype: torch.dtype = torch.float32) -> Tensor:
    """(n, 28, 28) images with values in 0 … 1 as (n, 81, 8, 8) features, ``block`` images at a time."""
    if images.dim() != 3 or images.shape[1:] != (28, 28):
        raise InvalidParameter("images", tuple(images.shape), "are not (n, 28, 28)", "pass one channel of 28 × 28")
    features = torch.empty(len(images), CHANNELS, _KEPT, _KEPT, dtype=dtype)
    for start in range(0, len(images), block):
        features[start : start + block] = _transform(images[start : start + block].to(torch.float32))
    return features


def _transform(images: Tensor) -> Tensor:
    fine, coarse = _wavelets()
    framed = pad(images[:, None], (2, 2, 2, 2), mode="reflect")
    spectrum = torch.fft.fft2(framed)
    first = torch.fft.ifft2(spectrum * fine).abs()
    second = torch.fft.ifft2(_lowest(spectrum) * coarse).abs()
    again = torch.fft.ifft2(_lowest(torch.fft.fft2(first))[:, :, None] * coarse).abs()
    return torch.cat([_smooth(framed), _smooth(first), _smooth(second), _smooth(again).flatten(1, 2)], 1)


def scattering_features(images: Tensor, *, logarithm: bool = False, block: int = 1000) -> Tensor:
    """(n, 28, 28) images as (n, 5184) rows for a linear model, in half precision to save memory.

    Each record's channels are brought to mean 0 and deviation 1 in 27 groups by itself. With ``logarithm`` the
    amplitudes are compared by ratio instead of difference, which suits images whose exposure varies.
    Guarantees: row i depends on image i and on public constants only.
    """
    features = torch.empty(len(images), FEATURES, dtype=torch.float16)
    for start in range(0, len(images), block):
        found = scattering(images[start : start + block])
        if logarithm:
            found = torch.log(found.clamp_min(0.0) + _FAINT)
        features[start : start + block] = group_norm(found, _GROUPS).flatten(1)
    return features


@final
class Widen(nn.Module):
    """Half precision in, single precision out."""

    def forward(self, values: Tensor) -> Tensor:
        """``values`` as float32."""
        return values.to(torch.float32)


def linear_on_features(classes: int) -> nn.Sequential:
    """A linear model on :func:`scattering_features` that starts at zero."""
    last = nn.Linear(FEATURES, classes)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(Widen(), last)
