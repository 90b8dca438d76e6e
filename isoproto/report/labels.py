"""How the report calls a loss term.

A run writes each loss term under the name that its part declares. The report draws every term that it finds, so a new
method needs no change here.
"""

from isoproto.report.formats import plain


def loss_label(term: str) -> str:
    """Return the label of a loss term: its name in metrics.jsonl with spaces for underscores.

    Example:
        >>> loss_label("cross_entropy")
        'cross entropy'
    """
    return plain(term.replace("_", " "), 30)
