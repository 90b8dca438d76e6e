"""Epsilon of several releases together, from Google's ``dp-accounting`` (extra ``privacy``).

It adds up privacy loss distributions: Koskela, Jälkö and Honkela, "Computing Tight Differential Privacy Guarantees
Using FFT", 2020. The result is an upper bound, and close: see tests/unit/test_privacy.py for the difference from the
closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from isoproto.errors import ConfigError

_STEP = 1e-4  # of the losses that the library adds up
_PRECISION = 1e-3  # relative, of the factor that is searched for


@dataclass(frozen=True, slots=True)
class Release:
    """Messages of one kind that are made from the same samples, with Gaussian noise.

    Attributes:
        noise_multiplier: Deviation of the noise over the sensitivity, > 0.
        times: How many such messages.
    """

    noise_multiplier: float
    times: int = 1

    def __post_init__(self) -> None:
        if not self.noise_multiplier > 0 or self.times < 0:
            raise ValueError(f"a release needs a noise multiplier above 0 and times of 0 or more, got {self}")


def epsilon_of(releases: Sequence[Release], delta: float) -> float:
    """Return epsilon of all releases together, for one sample and for a server that sees all of them.

    Args:
        releases: What was, or will be, sent. Nothing sent costs nothing.
        delta: Chance that the bound does not hold, in (0, 1); below one over the number of samples.

    Raises:
        ConfigError: If the package ``dp-accounting`` is missing.
        ValueError: If ``delta`` is out of range.

    Example:
        Ten messages with noise 10 and one with noise 4. The guarantee is that of one message with noise 2.48.

        >>> together = epsilon_of([Release(10.0, times=10), Release(4.0)], delta=1e-5)
        >>> alone = epsilon_of([Release((10 / 10**2 + 1 / 4**2) ** -0.5)], delta=1e-5)
        >>> round(together, 2), round(alone, 2)
        (1.57, 1.57)
    """
    _check_delta(delta)
    library = _library()
    costs = [release.times / release.noise_multiplier**2 for release in releases]
    # Losses grow with the cost. So do the steps, or little noise would take the library minutes.
    accountant = library.pld.PLDAccountant(value_discretization_interval=_STEP * max(1.0, sum(costs)))
    for release in releases:
        if release.times:
            accountant.compose(library.GaussianDpEvent(release.noise_multiplier), release.times)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, delta: float, releases: Sequence[Release]) -> float:
    """Return by which factor to multiply every release's noise, so that all together have this epsilon.

    With ``Release(1.0, ...)`` throughout, the factor is the noise multiplier itself. Different numbers say how the
    budget is dealt out: a release with 2.0 gets twice the noise of one with 1.0, and a quarter of its budget.

    Args:
        epsilon: The budget, > 0.
        delta: See :func:`epsilon_of`.
        releases: What will be sent, at least one message.

    Raises:
        ConfigError: If the package ``dp-accounting`` is missing.
        ValueError: If an argument is out of range.

    Example:
        >>> factor = noise_for(2.0, 1e-5, [Release(1.0), Release(2.0, times=10)])
        >>> epsilon = epsilon_of([Release(factor), Release(2 * factor, times=10)], 1e-5)
        >>> 1.99 < epsilon <= 2.0
        True
    """
    _check_delta(delta)
    if not epsilon > 0 or not sum(release.times for release in releases):
        raise ValueError(f"noise needs an epsilon above 0 and at least one message, got {epsilon} and {list(releases)}")
    low, high = 0.0, 1.0
    while epsilon_of(_scaled(releases, high), delta) > epsilon:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(_scaled(releases, middle), delta) > epsilon else (low, middle)
    return high


def _scaled(releases: Sequence[Release], factor: float) -> list[Release]:
    return [Release(release.noise_multiplier * factor, release.times) for release in releases]


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"`delta` must be between 0 and 1, got {delta}")


def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as err:
        raise ConfigError(
            "epsilon is computed by the package dp-accounting, which is not installed: pip install 'isoproto[privacy]'"
        ) from err
    module: ModuleType = dp_accounting
    return module
