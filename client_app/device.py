"""Where a client computes: the device, and how many CPU threads."""

import torch

from isoproto.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device that a setting names; ``auto`` is a GPU where there is one.

    Raises:
        ConfigError: If this machine has no such device.
    """
    found = ["cpu"]
    if torch.cuda.is_available():
        found.insert(0, "cuda")
    elif torch.backends.mps.is_available():
        found.insert(0, "mps")
    if name == "auto":
        return torch.device(found[0])
    reason = ""
    if name.split(":")[0] in found:
        try:
            torch.empty(0, device=name)
            return torch.device(name)
        except RuntimeError as err:  # a number that is none, or that no device has
            reason = f" ({str(err).splitlines()[0]})"
    raise ConfigError(
        f"`device` {name!r} is not on this machine, which has {found}{reason}; `auto` takes what there is"
    )


def use_threads(count: int) -> None:
    """Let torch use so many CPU threads."""
    # torch forgets all prepared convolutions when the number is set, even to the same value. That costs a small client
    # 8 % of its time.
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
