"""The data set ``hf:ID``: any set of Hugging Face, downloaded once into a file that needs none of its libraries."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from isoproto.data.base import Dataset
from isoproto.data.hugging_face import fetch_hugging_face, fetch_texts, open_hub
from isoproto.data.info import HuggingFace
from isoproto.data.npz import load_npz
from isoproto.data.text import load_texts
from isoproto.errors import DataError

_KEYS = ("config", "picture", "text", "label", "domain")
# Names that authors of data sets give their test part; the first that exists is taken.
_TEST = ("test", "validation", "valid", "dev")


def load_hub(argument: str, folder: Path) -> Dataset:
    """Read a set of Hugging Face from the file that ``fetch_hub`` wrote; nothing is downloaded.

    Args:
        argument: ``ID[,config=NAME][,picture=COLUMN][,text=COLUMN+COLUMN][,label=COLUMN][,domain=COLUMN]``.
        folder: See ``data_folder``.

    Raises:
        DataError: If the file does not exist or cannot be read.
    """
    hub_place(argument)
    pictures, texts = hub_files(argument, folder)
    if pictures.is_file():
        return load_npz(pictures.name, folder)
    if texts.is_file():
        return load_texts(texts.name, folder, kind="jsonl")
    raise DataError(
        f"data 'hf:{argument}': found neither {pictures} nor {texts}; `isoproto data 'hf:{argument}' --download` "
        "fetches it, or point `data-dir` to where such a file lies"
    )


def hub_files(argument: str, folder: Path) -> tuple[Path, Path]:
    """Return the two files that a download can have written: the first for pictures, the second for texts.

    Example:
        >>> [path.name for path in hub_files("ylecun/mnist,label=label", Path("."))]
        ['hf-ylecun-mnist-label-label.npz', 'hf-ylecun-mnist-label-label.jsonl.gz']
    """
    name = "hf-" + re.sub(r"[^A-Za-z0-9_]+", "-", argument).strip("-")
    return folder / f"{name}.npz", folder / f"{name}.jsonl.gz"


def hub_place(argument: str) -> HuggingFace:
    """Read the argument of ``hf:``; columns that it does not name are empty.

    Raises:
        DataError: If it names no set, or has an unknown key.

    Example:
        >>> place = hub_place("us/reviews,text=title+body")
        >>> place.path, place.text, place.label
        ('us/reviews', ('title', 'body'), '')
    """
    path, *options = (part.strip() for part in argument.split(","))
    said = dict(option.partition("=")[::2] for option in options)
    wrong = [option for option in options if option.partition("=")[0] not in _KEYS or not option.partition("=")[2]]
    if not path or wrong or len(said) < len(options):
        raise DataError(
            f"data 'hf:{argument}' must be hf:ID and then any of {' '.join(f',{key}=...' for key in _KEYS)}, each once"
            + (f"; {wrong[0]!r} is none of them" if wrong else "")
        )
    columns = tuple(filter(None, said.get("text", "").split("+")))
    return HuggingFace(
        path,
        said.get("config", ""),
        picture=said.get("picture", ""),
        label=said.get("label", ""),
        domain=said.get("domain", ""),
        text=columns,
    )


def fetch_hub(argument: str, folder: Path) -> None:
    """Download a set into a file of ``folder``; see ``load_hub``.

    Columns that the argument does not name are found by their type. Samples are the first column of pictures, else all
    columns of words. The label is the only column of numbered classes, else the column called ``label``.

    Raises:
        DataError: If the library `datasets` is not installed, the download fails, or the set has no such columns.
    """
    place = hub_place(argument)
    splits = open_hub(place)
    place = _complete(place, next(iter(splits.values())).features, list(splits))
    pictures, texts = hub_files(argument, folder)
    if place.text:
        fetch_texts(place, texts, splits)
    else:
        fetch_hugging_face(place, pictures, splits=splits)


def _complete(place: HuggingFace, features: dict[str, Any], splits: list[str]) -> HuggingFace:
    """Fill in the columns and splits that the user did not name."""
    kinds = {name: _kind(feature) for name, feature in features.items()}
    listed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    numbered = [name for name, kind in kinds.items() if kind == "classes" and name != place.domain]
    label = place.label or (numbered[0] if len(numbered) == 1 else "label")
    picture = place.picture or next((name for name, kind in kinds.items() if kind == "pictures"), "")
    text = place.text
    if not text and not picture:
        text = tuple(name for name, kind in kinds.items() if kind == "words" and name not in (label, place.domain))
    for key, names in (("label", (label,)), ("text" if text else "picture", text or (picture,))):
        if not set(names) <= kinds.keys():
            missing = sorted(set(names) - kinds.keys())[0]
            raise DataError(
                f"{place.path} of Hugging Face has "
                + (f"no column {missing!r}" if missing else "no pictures or words")
                + f"; it has {listed}. Say `{key}=COLUMN` in data 'hf:{place.path},{key}=...'"
            )
    test = next((name for name in _TEST if name in splits), "")
    train = tuple(name for name in splits if name == "train") or tuple(name for name in splits if name != test)[:1]
    return dataclasses.replace(
        place, picture=picture, text=text, label=label, train=train, test=(test,) if test else ()
    )


def _kind(feature: Any) -> str:  # noqa: ANN401 - a type of the library
    kind = type(feature).__name__
    if kind == "Value":
        return "words" if "string" in feature.dtype else str(feature.dtype)
    return {"Image": "pictures", "ClassLabel": "classes"}.get(kind, kind)
