"""Reading run folders and showing them: as tables in the terminal, and as one self-contained HTML page.

``docs/run-folder.md`` documents the folder. Nothing here changes the files of a run; :func:`write_report` adds
``report.html`` and ``plots/*.svg``, which depend on the folder's contents alone.
"""

from isoproto.report.added import added_line
from isoproto.report.page import write_report
from isoproto.report.privacy import privacy_line
from isoproto.report.run import ClientShare, Run, RunSummary, list_runs, read_run, read_summary
from isoproto.report.tables import runs_table, summary_table

__all__ = [
    "ClientShare",
    "Run",
    "RunSummary",
    "added_line",
    "list_runs",
    "privacy_line",
    "read_run",
    "read_summary",
    "runs_table",
    "summary_table",
    "write_report",
]
