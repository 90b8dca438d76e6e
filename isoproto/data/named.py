"""Well-known picture sets by name: finding one on this machine, reading it, and downloading it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.folders import split_number
from isoproto.data.info import INFOS, info_of
from isoproto.data.sources import Place, known_of, sources_of
from isoproto.errors import DataError


def load_named(argument: str, folder: Path, *, name: str) -> ImageDataset:
    """Read a set from the first place that has it; nothing is downloaded.

    Args:
        argument: Empty, or ``@`` and the rows and columns that pictures shall have. The latter is for sets whose
            pictures are resized to one size.
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
        DataError: If no place has it; the text lists the places and says how to get the set.
    """
    place = next(places(name, folder), None)
    if place is None:
        raise missing(name, looked_for(name, folder))
    return place


def missing(name: str, looked: Sequence[str]) -> DataError:
    """Return the error for a set that was found in none of the places ``looked``."""
    return DataError(
        f"data '{name}': found none of {', '.join(looked)}. {how_to_get(name)}; or point `data-dir` to where it lies"
    )


def how_to_get(name: str) -> str:
    """Return what a user can do who does not have a set yet."""
    return info_of(name).how_to_get.format(name=name)


def looked_for(name: str, folder: Path) -> list[str]:
    """Return the places where a set is looked for, in the order of preference."""
    return [where for source in sources_of(name, folder) for where in source.looked_for()]


def is_here(name: str, folder: Path) -> bool:
    """Return whether something of a set is where it is looked for, be it complete or not."""
    return any(source.is_here() for source in sources_of(name, folder))


def places(name: str, folder: Path) -> Iterator[Place]:
    """Yield the places that have a set, in the order of preference."""
    for source in sources_of(name, folder):
        yield from source.places()


def fetch(name: str, folder: Path) -> None:
    """Download a set into ``folder``, from torchvision if that has it, else from Hugging Face.

    Raises:
        DataError: If neither has it, or the download fails.
    """
    failures = []
    for download in [way for source in sources_of(name, folder) for way in source.downloads()]:
        try:
            download()
        except DataError as err:
            failures.append(str(err))
        else:
            return
    reasons = "; ".join(failures) or f"it is nowhere to be had from; {how_to_get(name)}"
    raise DataError(f"data '{name}' cannot be fetched: {reasons}")
