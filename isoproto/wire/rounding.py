"""Round rows of numbers to float16 or int8, each row with its scale, so that they take fewer bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-30  # a row whose largest magnitude is smaller is sent as zeros, so that no scale underflows float32


@dataclass(frozen=True, slots=True)
class RowFormat:
    r"""How a row of numbers travels: :math:`x \approx s q` with one scale :math:`s` for the row.

    With ``int8`` the scale is the largest magnitude over 127, and :math:`q` is the nearest whole number; halves are
    rounded to even numbers. The error of each number is at most :math:`s / 2`. With ``float16`` the scale is a power of
    two, so that the largest :math:`|q|` is from 1 to 2. Without a scale, float16 would lose digits of numbers below
    6e-5, such as mean gradients, and could not hold numbers above 65504. A row that holds NaN or infinity arrives as
    NaN, and the reader refuses it.

    Attributes:
        name: Value of the setting `wire.dtype`.
        stored: Type that numbers are stored as.
        top: Largest magnitude of a rounded row, in the words of an error text.
    """

    name: str
    stored: torch.dtype
    top: str = ""

    @property
    def scaled(self) -> bool:
        """Whether rows have scales. Rows in float32 have none and travel as they are."""
        return self.stored != torch.float32

    def bytes_of_row(self, width: int) -> int:
        """Return the bytes of one row of ``width`` numbers with its scale."""
        return width * self.stored.itemsize + (4 if self.scaled else 0)

    def stretch(self, width: int) -> float:
        """Return the largest share by which rounding can lengthen a row of ``width`` numbers."""
        # Half a step in each number, and a step is at most 1/127 of the row's length.
        return width**0.5 / 254 if self.stored == torch.int8 else 0.0

    def round(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers ``[..., d]`` and scales ``[...]``, float32, for ``rows`` ``[..., d]`` of any float dtype.

        Example:
            >>> FORMATS["int8"].round(torch.tensor([[254.0, -127.0, 3.0], [0.0, 0.0, 0.0]]))
            (tensor([[127, -64,   2],
                    [  0,   0,   0]], dtype=torch.int8), tensor([2., 0.]))
        """
        rows = rows.float()
        largest = rows.abs().amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])
        # A number over its mantissa, which is from 1/2 to 1, is a power of two without rounding.
        scales = largest / (127 if self.stored == torch.int8 else 2 * largest.frexp()[0])
        scales = torch.where(largest.isfinite(), scales, torch.nan)
        scales = torch.where(largest < TINY, 0, scales)
        numbers = torch.where(scales.unsqueeze(-1) > 0, rows / scales.unsqueeze(-1), 0)
        if self.stored == torch.int8:
            numbers = numbers.round().clamp(-127, 127)
        return numbers.to(self.stored), scales

    def restore(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """Return the rows ``[..., d]`` in float32."""
        return numbers.float() * scales.unsqueeze(-1)

    def forged(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """Return which rows have a finite scale ``[...]`` that :meth:`round` cannot have given them, bool ``[...]``."""
        magnitudes = numbers.float().abs()
        largest = magnitudes.amax(-1) if numbers.shape[-1] else scales.new_zeros(scales.shape)
        full = largest == 127 if self.stored == torch.int8 else (largest >= 1) & (largest <= 2)
        proper = torch.where(scales == 0, largest == 0, (scales > 0) & full)
        # Numbers that are not finite are left to the reader, who knows which rows are read at all.
        return ~proper & scales.isfinite() & largest.isfinite()


FORMATS: dict[str, RowFormat] = {
    "float32": RowFormat("float32", torch.float32),
    "float16": RowFormat("float16", torch.float16, "from 1 to 2"),
    "int8": RowFormat("int8", torch.int8, "127"),
}
