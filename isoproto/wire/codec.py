"""Code records, arrays, numbers and texts of a message, and check each before it is used.

Decoding trusts nothing. The length of an array's bytes, its declared shape and its header must agree before anything is
decoded. Flower compares none of them, and a forged header makes NumPy allocate gigabytes.
"""

import io
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from torch import Tensor

from isoproto.errors import SchemaMismatch, WireError
from isoproto.parts.base import AXES, Field
from isoproto.settings.rules import Scalar
from isoproto.wire.rounding import FORMATS, RowFormat

SCHEMA_VERSION = 1

CONFIG, SETTINGS, ARRAYS, MODEL, METRICS = "config", "settings", "arrays", "model", "metrics"
TEXT_LIMIT = 4096  # most characters of a name or reason that is taken from a message
COUNT_LIMIT = 2**40  # more samples than a client can hold
NUMBER_LIMIT = 3.4e38  # largest loss: what float32 holds, so that a sum over clients is finite too
# Types that tensors of a model may have. Other types of NumPy run code or have no fixed size.
DTYPES = frozenset({"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"})
SCALE = "-scale"  # ends the name of the array that holds the scales of another array's rows

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
Spec = dict[str, tuple[str, tuple[int, ...]]]
"""Names, dtypes and shapes of tensors."""


def tensor_spec(tensors: Mapping[str, Tensor]) -> Spec:
    """Return name, dtype and shape of each tensor."""
    return {name: (_name_of(t.dtype), tuple(t.shape)) for name, t in tensors.items()}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def serialised_bytes(content: RecordDict) -> int:
    """Return the size of a message's content in bytes as protobuf writes it."""
    return int(recorddict_to_proto(content).ByteSize())


# Records and plain values


def check_schema(config: ConfigRecord) -> None:
    """Refuse a message of another schema version."""
    schema = config.get("schema")
    if schema != SCHEMA_VERSION:
        raise SchemaMismatch(
            f"message uses wire schema {shown(schema)}, this side speaks {SCHEMA_VERSION}; "
            "update the older side's copy of isoproto"
        )


def check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not known."""
    if extra := sorted(set(names).difference(known)):
        raise WireError(f"unexpected {what} {extra!r:.200}")


def record_of(content: RecordDict, name: str, kind: type[Record]) -> Record:
    """Return a record of a message by name and kind."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise WireError(
            f"no {kind.__name__} '{name}' in the message: it is none of isoproto's (records: {list(content)!r:.200})"
        )
    return record


def settings_of(content: RecordDict) -> dict[str, Scalar]:
    """Return the settings in a message."""
    record = record_of(content, SETTINGS, ConfigRecord)
    return {k: v for k, v in record.items() if isinstance(v, bool | int | float | str)}


def row_dtype_of(settings: Mapping[str, Scalar]) -> str:
    """Return how rows travel under some settings."""
    dtype = settings.get("wire.dtype", "float32")
    if not isinstance(dtype, str) or dtype not in FORMATS:
        raise WireError(f"setting 'wire.dtype': expected one of {', '.join(FORMATS)}, got {shown(dtype)}")
    return dtype


def is_name(value: object, limit: int = TEXT_LIMIT) -> bool:
    """Return whether a value is a printable text of limited length."""
    return isinstance(value, str) and len(value) <= limit and value.isprintable()


def text_of(config: ConfigRecord, key: str, limit: int = TEXT_LIMIT) -> str:
    """Return a printable text of limited length."""
    value = config.get(key)
    if not isinstance(value, str) or not is_name(value, limit):
        raise WireError(f"config '{key}': expected up to {limit} printable characters, got {shown(value)}")
    return value


def integer_of(record: ConfigRecord | MetricRecord, key: str, low: int, high: int = COUNT_LIMIT) -> int:
    """Return a whole number within bounds."""
    value = record.get(key)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"'{key}': expected a whole number from {low} to {high}, got {shown(value)}")
    return value


def integers_of(record: ConfigRecord | MetricRecord, key: str, length: int) -> tuple[int, ...]:
    """Return a list of whole numbers of a given length."""
    value = record.get(key)
    if (
        not isinstance(value, list)
        or len(value) != length
        or not all(type(v) is int and 0 <= v <= COUNT_LIMIT for v in value)
    ):
        raise WireError(f"'{key}': expected {length} whole numbers >= 0, got {shown(value)}")
    return tuple(int(v) for v in value)


def number_of(metrics: MetricRecord, key: str, low: float = -NUMBER_LIMIT) -> float:
    """Return a finite number."""
    value = metrics.get(key)
    if type(value) not in (int, float) or not low <= value <= NUMBER_LIMIT:  # type: ignore[operator]
        wanted = "a finite number" + (f" >= {low:g}" if low > -NUMBER_LIMIT else "")
        raise WireError(f"metric '{key}': expected {wanted}, got {shown(value)}; at most {NUMBER_LIMIT:g} is taken")
    return float(value)  # type: ignore[arg-type]


def shown(value: object) -> str:
    """Return a value from a message as an error text shows it: short, on one line, without control characters."""
    return f"{value!r:.80}"


# Arrays


def write_array(tensor: Tensor, dtype: torch.dtype) -> Array:
    """Encode a tensor."""
    # NumPy's ascontiguousarray would give an axis to a tensor that has none.
    return Array(tensor.detach().to("cpu", dtype).contiguous().numpy())


def write_fields(tensors: Mapping[str, Tensor], fields: Mapping[str, Field], dtype: str) -> ArrayRecord:
    """Encode arrays as their fields declare them. Fields that may be rounded travel in ``dtype``.

    Raises:
        ValueError: If no part declares an array.
    """
    if unknown := sorted(tensors.keys() - fields.keys()):
        raise ValueError(f"arrays {unknown} are declared by no part; add a Field for each to the part that sends it")
    form, arrays = FORMATS[dtype], {}
    for name, field in fields.items():
        if name not in tensors:
            continue
        if form.scaled and field.rounded:
            numbers, scales = form.round(tensors[name].detach().cpu())
            arrays[name], arrays[name + SCALE] = (
                write_array(numbers, form.stored),
                write_array(scales, torch.float32),
            )
        else:
            arrays[name] = write_array(tensors[name], _stored(field))
    return ArrayRecord(arrays)


def _stored(field: Field) -> torch.dtype:
    return torch.uint8 if field.dtype == torch.bool else field.dtype


def is_sent(arrays: ArrayRecord, field: Field) -> bool:
    """Return whether a message holds an array, or the scales of its rows."""
    return field.name in arrays or field.name + SCALE in arrays


def array_names(fields: Iterable[Field], form: RowFormat) -> list[str]:
    """Return the names of the arrays that a message may hold: the fields, and the scales of rounded rows."""
    fields = list(fields)
    return [*(f.name for f in fields), *(f.name + SCALE for f in fields if form.scaled and f.rounded)]


def read_field(arrays: ArrayRecord, field: Field, form: RowFormat, sizes: Mapping[str, int]) -> Tensor:
    """Decode one array. Rows that travelled rounded become float32.

    Args:
        arrays: The message's arrays.
        field: Declares the array.
        form: How rows travel.
        sizes: Length of each axis by its letter, but for those in ``AXES``.
    """
    shape = _shape(arrays, field, sizes)
    if not (form.scaled and field.rounded):
        tensor = read_tensor(arrays, field.name, _name_of(_stored(field)), shape)
        return tensor.bool() if field.dtype == torch.bool else tensor
    numbers = read_tensor(arrays, field.name, form.name, shape)
    scales = read_tensor(arrays, field.name + SCALE, "float32", shape[:-1])
    if (wrong := form.forged(numbers, scales)).any():
        row = int(wrong.flatten().nonzero()[0])
        raise WireError(
            f"array '{field.name + SCALE}': the scale {float(scales.flatten()[row]):.3g} of row {row} is not that of "
            f"its numbers, of which the largest must be {form.top}"
        )
    rows = form.restore(numbers, scales)
    # A relation is the same in both directions, but its two numbers were rounded in different rows.
    return (rows + rows.T) / 2 if field.symmetric else rows


def _shape(arrays: ArrayRecord, field: Field, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape that an array must have. Axes of any length have the length that the array says."""
    axes = field.shape.split()
    array = arrays.get(field.name)
    said = array.shape if array is not None and len(array.shape) == len(axes) else (1,) * len(axes)
    for axis, size in zip(axes, said, strict=True):
        if axis in AXES and not AXES[axis].least <= int(size) <= AXES[axis].most:
            least, most, noun = AXES[axis]
            raise WireError(f"array '{field.name}': expected {least}..{most} {noun}, got {size}")
    return tuple(
        int(size) if axis in AXES else int(axis) if axis.isdecimal() else sizes[axis]
        for axis, size in zip(axes, said, strict=True)
    )


def length_of(arrays: ArrayRecord, name: str, limit: int) -> int:
    """Return how many entries a one-dimensional array has."""
    shape = arrays[name].shape if name in arrays else ()
    if len(shape) != 1 or not 0 <= shape[0] <= limit:
        raise WireError(f"array '{name}': expected at most {limit} entries, got shape {shape!r:.200}")
    return int(shape[0])


def read_tensor(arrays: ArrayRecord, name: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Decode one array, after checking that its declared shape, its header and its length agree."""
    array = arrays.get(name)
    if array is None:
        raise WireError(f"array '{name}' is missing; arrays: {list(arrays)!r:.200}")
    if dtype not in DTYPES:
        raise WireError(f"array {name!r:.200}: no model has tensors of type {dtype!r:.40}")
    if array.stype != "numpy.ndarray" or array.dtype != dtype or tuple(array.shape) != shape:
        raise WireError(
            f"array {name!r:.200}: expected {dtype} {shape}, got {array.dtype!r:.40} {tuple(array.shape)!r:.200}"
        )
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"npy version {version}")
        inner_shape, fortran, inner_dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as err:  # a forged header can raise anything while NumPy parses it
        raise WireError(f"array {name!r:.200}: its header cannot be read ({type(err).__name__})") from err
    wanted = np.dtype(dtype).newbyteorder("<")
    offset, length = stream.tell(), math.prod(shape) * wanted.itemsize
    if inner_shape != shape or inner_dtype != wanted or (fortran and len(shape) > 1):
        raise WireError(
            f"array {name!r:.200}: declared {dtype} {shape}, but its header says {inner_dtype} {inner_shape!r:.200}"
        )
    if len(array.data) - offset != length:
        raise WireError(f"array {name!r:.200}: expected {length} bytes of data, got {len(array.data) - offset}")
    values = np.frombuffer(array.data, dtype=wanted, offset=offset).reshape(shape)
    return torch.from_numpy(values.copy())


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse arrays that hold NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WireError(f"array {name!r:.200} {where} holds NaN or infinity, shape {tuple(tensor.shape)}")
