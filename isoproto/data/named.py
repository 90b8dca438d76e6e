"""Well-known picture sets by name: where one lies on this machine, and reading it from there."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from isoproto.data import sources
from isoproto.data.base import ImageDataset
from isoproto.data.folders import split_number
from isoproto.data.hub import fetch_hub, hub_files
from isoproto.data.hugging_face import fetch_hugging_face, fetch_texts
from isoproto.data.info import INFOS
from isoproto.data.sources import Place, known_of, npz_place, read_folder
from isoproto.data.torchvision_sets import fetch_torchvision, read_torchvision, torchvision_files
from isoproto.errors import DataError


def load_named(argument: str, folder: Path, *, name: str) -> ImageDataset:
    """Read a set from the first place that has it; nothing is downloaded.

    Args:
        argument: ``@`` and the rows and columns that pictures are to have, for a set of which they are brought to one
            size; else empty.
        folder: See ``data_folder``.
        name: Key of ``INFOS``.

    Raises:
        DataError: If there is another argument, or the set is not there, cannot be read or has another size.
    """
    if not argument:
        return locate(name, folder).load()
    if not INFOS[name].side:
        refuse_argument(name, argument)
    if split_number(argument)[0]:
        raise DataError(f"data '{name}' takes @ and a side in pixels, such as @224, got {argument!r}")
    asked = f"{name}:{argument}"
    found, side = locate(asked, folder).load(), known_of(asked).side
    if (got := tuple(found.x.shape[2:])) != (side, side) and side != INFOS[name].side:
        raise DataError(
            f"data '{asked}': {found.source} holds pictures of {got[0]}x{got[1]}, wanted {side}x{side}; remove it, or "
            f"make it anew: {how_to_get(asked)}"
        )
    return found


def refuse_argument(name: str, argument: str) -> None:
    """Raise ``DataError`` if something follows the colon of a name that takes nothing."""
    if argument:
        raise DataError(f"data '{name}' takes no argument, got {argument!r}; its files are looked up in `data-dir`")


def locate(name: str, folder: Path) -> Place:
    """Return the first place that has a set.

    Raises:
        DataError: If there is none: where it was looked for, and how to get it.
    """
    place = next(places(name, folder), None)
    if place is None:
        raise missing(name, looked_for(name, folder))
    return place


def missing(name: str, looked: Sequence[str]) -> DataError:
    """Return the error for a set that is nowhere."""
    return DataError(
        f"data '{name}': found none of {', '.join(looked)}. {how_to_get(name)}; or point `data-dir` to where it lies"
    )


def how_to_get(name: str) -> str:
    """Return what a user does who has not a set yet."""
    return INFOS[name.partition(":")[0]].how_to_get.format(name=name)


def looked_for(name: str, folder: Path) -> list[str]:
    """Return the places where a set is looked for, in the order of preference."""
    kind, _, argument = name.partition(":")
    if kind == "hf":
        return list(map(str, hub_files(argument, folder)))
    info = known_of(name)
    files = [str(folder / known.name) for known in info.files]
    trees = [f"{folder / tree}/" for tree in info.folders]
    theirs = [f"{folder / pattern} (torchvision's)" for pattern in (info.torchvision.files if info.torchvision else ())]
    return [*files, *trees, *theirs, *(place for part in info.parts for place in looked_for(part, folder))]


def is_here(name: str, folder: Path) -> bool:
    """Return whether something of a set is where it is looked for, be it whole or not."""
    kind, _, argument = name.partition(":")
    if kind == "hf":
        return any(path.exists() for path in hub_files(argument, folder))
    info = known_of(name)
    names = [known.name for known in info.files] + list(info.folders)
    patterns = info.torchvision.files if info.torchvision else ()
    return (
        any((folder / path).exists() for path in names)
        or any(any(folder.glob(pattern)) for pattern in patterns)
        or any(is_here(part, folder) for part in info.parts)
    )


def places(name: str, folder: Path) -> Iterator[Place]:
    """Yield the places that have a set, in the order of preference."""
    kind, info = name.partition(":")[0], known_of(name)
    for known in info.files:
        path = folder / known.name
        if path.is_file():
            yield npz_place(path, sources.notes_on(name, known, path))
    for tree in info.folders:
        root = folder / tree
        if root.is_dir():
            files = [path for path in root.rglob("*") if path.is_file()]
            yield Place(files, info.caveats, functools.partial(read_folder, kind, root, info.side))
    if info.torchvision and (files := torchvision_files(info.torchvision, folder)):
        read = functools.partial(read_torchvision, kind, info.torchvision, folder, info.side)
        yield Place(files, info.caveats, read)


def fetch(name: str, folder: Path) -> None:
    """Download a set into ``folder``, from torchvision if that has it, else from Hugging Face.

    Raises:
        DataError: If neither has it, or it cannot be had.
    """
    kind, _, argument = name.partition(":")
    info, failures = known_of(name), []
    ways: list[Callable[[], None]] = []
    if kind == "hf":
        ways.append(functools.partial(fetch_hub, argument, folder))
    if info.torchvision:
        ways.append(functools.partial(fetch_torchvision, info.torchvision, folder))
    if info.hugging_face and info.hugging_face.text:
        ways.append(functools.partial(fetch_texts, info.hugging_face, folder / f"{kind}.jsonl.gz"))
    elif info.hugging_face:
        ways.append(functools.partial(fetch_hugging_face, info.hugging_face, folder / info.files[0].name, info.side))
    for way in ways:
        try:
            way()
        except DataError as err:
            failures.append(str(err))
        else:
            return
    reasons = "; ".join(failures) or f"it is nowhere to be had from; {how_to_get(name)}"
    raise DataError(f"data '{name}' cannot be fetched: {reasons}")
