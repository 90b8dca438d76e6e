"""Where a client computes: the device, and how many CPU threads."""

import torch

from isoproto.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device that a setting names; ``auto`` is a GPU where there is one.

    Raises:
        ConfigError: If this machine has no such device.
    """
    available = ["cpu"]
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    elif torch.backends.mps.is_available():
        available.insert(0, "mps")
    if name == "auto":
        return torch.device(available[0])
    reason = ""
    if name.split(":")[0] in available:
        try:
            torch.empty(0, device=name)
            return torch.device(name)
        except RuntimeError as err:  # the text after the colon is no number, or no device has this number
            reason = f" ({str(err).splitlines()[0]})"
    raise ConfigError(
        f"`device` {name!r} is not on this machine, which has {available}{reason}; `auto` takes what there is"
    )


def use_threads(count: int) -> None:
    """Set the number of CPU threads that torch uses."""
    # Setting the number makes torch forget all prepared convolutions, even if the number stays the same. A small client
    # would lose 8 % of its time by that.
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
