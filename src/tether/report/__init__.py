"""What a run left behind, as records and as one HTML page.

    read      the files of a run folder -> frozen records; what is missing or broken is left out and named
    charts    numbers -> the geometry of a curve; no drawing library
    words     records -> sentences and rows of the summary
    page      everything -> folder/report.html, one file that opens without a network
    templates page.html, page.css, page.js

Imports no torch: a report can be read and rebuilt on any laptop. What models wrote is hostile text here.
"""

from __future__ import annotations

from tether.report.page import write_report
from tether.report.read import RunRecord, read_run

__all__ = ["RunRecord", "read_run", "write_report"]
