"""Products of few rows on a CPU: bfloat16 by matrices in the blocked layout that oneDNN multiplies by, float32 with the matrix first.

A product with a plain matrix brings it into that layout first, every time: with a few rows that takes longer than the product. A prepacked
matrix is an opaque tensor (``is_mkldnn``): it has shape and dtype, another of its shape is written over it with ``copy_``, and ``to_dense``
reads it back exactly. Only ``product`` multiplies by it. Axes: N rows, I and O the width before and after.

It is used where it gives the bits of the plain product, which is tried on the matrices themselves. In float32 it does not: PyTorch
multiplies plain float32 matrices by another library. Nor does it where a product is very small, for the same reason.

That library copies the second factor of a product into a layout of its own. In x W^T of a few rows that is the large one, so float32
products are (W x^T)^T: the same sums, a fifth to a third sooner with 8 to 64 rows (bench/RESULTS.md). Their result is a view with the
rows last in memory; ``wide_product``, whose result is large and read row by row, copies it a piece at a time while that is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product as product_of_lists

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

__all__ = ["prepack", "product", "why_not_prepacked", "wide_product"]

TRIED_ROWS = (1, 8, 64)
SMALLEST = 16**3 + 1  # multiplications of a row; with fewer PyTorch does not ask oneDNN (mkldnn_gemm_min_size in ATen)

FEW_ROWS = 256  # with more, x W^T is the quicker order
PIECE = 2048  # columns of a wide product that are made at a time


def prepack(matrix_OI: Float[Tensor, "O I"]) -> Tensor:
    """The same matrix in oneDNN's layout, in memory of its own. Call it only where ``why_not_prepacked`` says nothing."""
    return torch.ops.mkldnn._reorder_linear_weight(matrix_OI)


def product(x_NI: Float[Tensor, "N I"], matrix_OI: Tensor, bias_O: Tensor | None = None) -> Float[Tensor, "N O"]:
    """x times the transposed matrix, which is plain or prepacked, and a bias."""
    if matrix_OI.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x_NI, matrix_OI, bias_O, "none", [], "")
    if not _matrix_first(x_NI):
        return F.linear(x_NI, matrix_OI, bias_O)
    return (torch.mm(matrix_OI, x_NI.T) if bias_O is None else torch.addmm(bias_O[:, None], matrix_OI, x_NI.T)).T


def wide_product(x_NI: Float[Tensor, "N I"], matrix_OI: Tensor) -> Float[Tensor, "N O"]:
    """``product`` for a matrix of very many rows (an output head), each row of the result in one stretch of memory."""
    if matrix_OI.is_mkldnn or not _matrix_first(x_NI):
        return product(x_NI, matrix_OI)
    out_NO = x_NI.new_empty(len(x_NI), len(matrix_OI))
    for own, part in zip(out_NO.split(PIECE, 1), matrix_OI.split(PIECE), strict=True):
        own.copy_(product(x_NI, part))
    return out_NO


def _matrix_first(x_NI: Tensor) -> bool:
    return x_NI.dtype == torch.float32 and x_NI.device.type == "cpu" and len(x_NI) <= FEW_ROWS


def why_not_prepacked(matrices: Iterable[Float[Tensor, "O I"]], *, biased: bool = False) -> str | None:
    """The reason why plain matrices like these are multiplied as they are, or None where prepacked ones give the same bits.

    Both operators are private to PyTorch and bound to the CPU, so what counts is what they do here: products of 1, 8 and 64 rows, the
    second write that a publish makes, and reading back. ``biased``: products with a bias, too.
    """
    for matrix_OI in matrices:
        if matrix_OI.device.type != "cpu" or matrix_OI.dtype != torch.bfloat16:
            return f"products are {str(matrix_OI.dtype).removeprefix('torch.')} on {matrix_OI.device.type}, not bfloat16 on a CPU"
        if matrix_OI.numel() < SMALLEST:
            return f"a matrix of {tuple(matrix_OI.shape)} is too small for oneDNN"
        try:
            same = _gives_the_same(matrix_OI, biased)
        except (AttributeError, RuntimeError, NotImplementedError) as error:
            return f"oneDNN does not do it on this machine ({str(error).splitlines()[0]})"
        if not same:
            return f"oneDNN multiplies a matrix of {tuple(matrix_OI.shape)} with other rounding on this machine"
    return None


def _gives_the_same(matrix_OI: Tensor, biased: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    x_NI = torch.randn(max(TRIED_ROWS), matrix_OI.shape[1], generator=generator).to(matrix_OI.dtype)
    biases = [None, torch.randn(matrix_OI.shape[0], generator=generator).to(matrix_OI.dtype)][: 1 + biased]
    packed = prepack(torch.zeros_like(matrix_OI))
    packed.copy_(prepack(matrix_OI))
    if not torch.equal(packed.to_dense(), matrix_OI):
        return False
    tried = product_of_lists(TRIED_ROWS, biases)
    return all(torch.equal(product(x_NI[:rows], packed, bias), product(x_NI[:rows], matrix_OI, bias)) for rows, bias in tried)
