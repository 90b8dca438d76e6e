"""Reading run folders back, and showing them: tables for the terminal, one self-contained HTML page.

``docs/run-folder.md`` documents the folder. Nothing here changes a run's own files; :func:`write_report` adds
``report.html`` and ``plots/*.svg``, which depend on the folder's contents alone.
"""

from isoproto.report.page import write_report
from isoproto.report.run import ClientShare, Run, RunSummary, list_runs, read_run, read_summary
from isoproto.report.tables import runs_table, summary_table

__all__ = [
    "ClientShare",
    "Run",
    "RunSummary",
    "list_runs",
    "read_run",
    "read_summary",
    "runs_table",
    "summary_table",
    "write_report",
]
