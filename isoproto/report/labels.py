"""How the report calls a loss term.

A run writes each loss term under the name that its method gives it. The report draws every term that it finds, so a
new method needs no change here. Give a term a label only where its name alone would not be understood.
"""

from isoproto.report.formats import plain

LOSS_LABELS: dict[str, str] = {}  # name of a loss term in metrics.jsonl -> its label


def loss_label(term: str) -> str:
    """Return the label of a loss term: the one in :data:`LOSS_LABELS`, else its name with spaces for underscores.

    Example:
        >>> loss_label("cross_entropy")
        'cross entropy'
    """
    return plain(LOSS_LABELS.get(term, term.replace("_", " ")), 30)
