"""Download a data set of Hugging Face into a file that runs can read without its libraries."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isoproto import paths
from isoproto.data.folders import new_file
from isoproto.data.info import HuggingFace
from isoproto.errors import DataError, StateError

Names = npt.NDArray[np.str_]
Splits = dict[str, Any]


def fetch_hugging_face(place: HuggingFace, path: Path, side: int = 0, splits: Splits | None = None) -> None:
    """Write a set of Hugging Face to ``path`` as encoded pictures, see ``load_npz``.

    Splits that are in Hugging Face's cache are not downloaded again. Runs read the file and do not need its library.

    Args:
        place: The set.
        path: The file to write; it appears complete or not at all.
        side: Rows and columns to which pictures of another size are resized, and then kept as PNG; 0 keeps the files as
            they are.
        splits: The result of ``open_hub`` for this set, if it was called before.

    Raises:
        DataError: If the library `datasets` is not installed, the download fails, or the set lacks what ``place``
            names.
    """
    splits, datasets = splits or open_hub(place), _library(place)
    try:
        parts = [(splits[name], test) for test, names in ((0, place.train), (1, place.test)) for name in names]
        files = [
            _bytes(row["bytes"], row["path"], side)
            for part, _ in parts
            for row in part.cast_column(place.picture, datasets.Image(decode=False))[place.picture]
        ]
        labels, classes = _numbered([part for part, _ in parts], place.label)
        split = np.repeat([test for _, test in parts], [len(part) for part, _ in parts])
        arrays = {"labels": labels, "classes": classes, "split": split.astype(np.uint8)}
        if place.domain:
            arrays["domain"], arrays["domains"] = _numbered([part for part, _ in parts], place.domain)
    except Exception as err:  # several libraries raise errors of many types
        raise _not_had(place, err) from err
    jpeg = np.frombuffer(b"".join(files), np.uint8)
    _write(path, jpeg=jpeg, offsets=np.cumsum([0, *map(len, files)]), **arrays)


def fetch_texts(place: HuggingFace, path: Path, splits: Splits | None = None) -> None:
    """Write a set of texts of Hugging Face to ``path``: rows of ``text``, ``label`` and ``split``, gzipped.

    Args:
        place: The set.
        path: The file to write; it appears complete or not at all.
        splits: The result of ``open_hub`` for this set, if it was called before. Classes are then written by their
            names, else by their numbers.

    Raises:
        DataError: If the library `datasets` is not installed, the download fails, or the set lacks what ``place``
            names.
    """
    named, splits = splits is not None, splits or open_hub(place)
    try:
        classes = getattr(next(iter(splits.values())).features[place.label], "names", None) if named else None
        rows = [
            {
                "split": part,
                "label": classes[row[place.label]] if classes else row[place.label],
                "text": " ".join(row[column].strip() for column in place.text),
                **({"domain": str(row[place.domain])} if place.domain else {}),
            }
            for part, names in (("train", place.train), ("test", place.test))
            for name in names
            for row in splits[name]
        ]
    except Exception as err:  # several libraries raise errors of many types
        raise _not_had(place, err) from err
    content = gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode(), mtime=0)
    try:
        paths.write_atomically(path, content)
    except StateError as err:
        raise DataError(f"{err}, by `data-dir`") from err


def open_hub(place: HuggingFace) -> Splits:
    """Download a set, unless Hugging Face's cache has it, and return its splits by name.

    Raises:
        DataError: If the library `datasets` is not installed, or the download fails.
    """
    datasets = _library(place)
    try:
        splits: Splits = datasets.load_dataset(place.path, *([place.config] if place.config else []))
    except Exception as err:  # several libraries raise errors of many types
        raise _not_had(place, err) from err
    return splits


def _library(place: HuggingFace) -> Any:  # noqa: ANN401 - a module
    try:
        import datasets
    except ImportError as err:
        raise DataError(
            f"{place.path} is at Hugging Face, and reading it from there needs the library `datasets`: "
            "pip install 'isoproto[data]'"
        ) from err
    return datasets


def _not_had(place: HuggingFace, err: Exception) -> DataError:
    reason = " ".join(str(err).split()) or type(err).__name__
    return DataError(f"{place.path} of Hugging Face cannot be had ({reason}); try again with a network")


def _bytes(content: bytes | None, path: str | None, side: int) -> bytes:
    data = content if content is not None else Path(path or "").read_bytes()
    if side:
        from PIL import Image  # not every machine that trains decodes pictures

        with Image.open(io.BytesIO(data)) as image:
            if image.size != (side, side):
                buffer = io.BytesIO()
                image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS).save(buffer, "PNG")
                return buffer.getvalue()
    return data


def _numbered(parts: list[Any], column: str) -> tuple[npt.NDArray[np.int64], Names]:
    """Return numbers and names of a column of classes; a column of plain names is numbered in sorted order."""
    values = np.concatenate([np.asarray(part[column]) for part in parts])
    names = getattr(parts[0].features[column], "names", None)
    if names is not None:
        return values.astype(np.int64), np.array(names)
    found, numbers = np.unique(values.astype(str), return_inverse=True)
    return numbers.astype(np.int64), found


def _write(path: Path, **arrays: npt.NDArray[Any]) -> None:
    try:
        with new_file(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type] # numpy's stub takes any for `allow_pickle`
    except OSError as err:
        raise DataError(f"cannot write {path} ({err.strerror}); free some space, or choose another `data-dir`") from err
