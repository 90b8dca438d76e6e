"""What noise promises, in one line for the terminal and the report."""

from collections.abc import Mapping
from typing import Any


def privacy_line(summary: Mapping[str, Any]) -> str:
    r"""Return epsilon, delta, the protected unit and the number of releases; empty for a run without noise.

    A release is a message of one client. The number is that of the client that sent most.

    Args:
        summary: Content of `summary.json`.

    Example:
        >>> privacy = {"epsilon": 3.0999, "delta": 1e-5, "unit": "one training sample", "releases": 1}
        >>> print(privacy_line({"privacy": privacy}).replace(". ", ".\n"))
        Privacy: epsilon 3.1 at delta 1e-05 for one training sample, 1 release.
        It covers the statistics alone, and not accuracies, losses and class counts.
        >>> privacy_line({})
        ''
    """
    found = summary.get("privacy")
    if not found:
        return ""
    releases = f"{found['releases']} release{'' if found['releases'] == 1 else 's'}"
    return (
        f"Privacy: epsilon {found['epsilon']:.3g} at delta {found['delta']:g} for {found['unit']}, {releases}. It "
        "covers the statistics alone, and not accuracies, losses and class counts."
    )
