"""The mathematics against files of golden cases: `tether conformance FILE`. See docs/conformance.md.

`codec` reads the numbers and measures errors, `inputs` makes tensors of them, `ops_*` name the operations of
the format in terms of tether.maths, `run` goes through a file, `show` prints what came out.
"""

from .operations import OPERATIONS
from .run import CaseResult, ConformanceReport, Failure, OperationResult, run_case, run_file
from .show import as_json, as_text

__all__ = [
    "OPERATIONS",
    "CaseResult",
    "ConformanceReport",
    "Failure",
    "OperationResult",
    "as_json",
    "as_text",
    "run_case",
    "run_file",
]
