"""The charts of the report: curves and heat maps as SVG files."""

from isoproto.report.charts.added import exchanged_against_alone
from isoproto.report.charts.clients import accuracy_by_client
from isoproto.report.charts.curves import (
    accuracy_by_round,
    bytes_by_round,
    losses_by_round,
    matching_by_round,
    seconds_by_round,
)
from isoproto.report.charts.heatmaps import class_similarity, partition
from isoproto.report.charts.svg import PALETTE, Chart, themed

__all__ = [
    "PALETTE",
    "Chart",
    "accuracy_by_client",
    "accuracy_by_round",
    "bytes_by_round",
    "class_similarity",
    "exchanged_against_alone",
    "losses_by_round",
    "matching_by_round",
    "partition",
    "seconds_by_round",
    "themed",
]
