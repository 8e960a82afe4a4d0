"""A lab's panels as one picture, with matplotlib (the extra "plot"), which is imported when a picture is asked for."""

from __future__ import annotations

import math
from pathlib import Path

from tether.errors import ConfigError
from tether.labs.result import LabResult, Panel

__all__ = ["check_plot", "write_plot"]

SUFFIXES = (".svg", ".png")
INCHES_WIDE, INCHES_HIGH, DOTS_PER_INCH = 5.2, 3.8, 150


def write_plot(result: LabResult, path: str | Path) -> Path:
    """Draw every panel side by side and write .svg or .png; the same result gives the same bytes. Returns the path.

    Raises ConfigError for another suffix, a folder that does not exist, a result without panels, or without matplotlib.
    """
    target = check_plot(path)
    if not result.panels:
        raise ConfigError(f"plot: the lab {result.name} has nothing to draw")
    try:
        _draw(result, target)
    except OSError as error:
        raise ConfigError(f"plot: {target} cannot be written: {error}") from error
    return target


def check_plot(path: str | Path) -> Path:
    """The path, if a picture may be written there; ask before a long lab. Raises ConfigError as :func:`write_plot` does."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        found = repr(target.suffix) if target.suffix else "no suffix"
        raise ConfigError(f"plot: {target} ends in {found}; expected {' or '.join(SUFFIXES)}")
    if not target.parent.is_dir():
        raise ConfigError(f"plot: the folder {target.parent} does not exist; create it first")
    if target.is_dir():
        raise ConfigError(f"plot: {target} is a folder; give the path of a file")
    return target


def _draw(result: LabResult, target: Path) -> None:
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plot: matplotlib is not installed; run: pip install "tether[plot]"') from error
    # A fixed salt and no date make the ids and the header of an svg those of the last time; text stays text, not outlines.
    with mpl.rc_context({"svg.hashsalt": "tether", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(INCHES_WIDE * len(result.panels), INCHES_HIGH), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(1, len(result.panels), squeeze=False)[0], result.panels, strict=True):
            _panel(axes, panel)
        metadata = {"Date": None} if target.suffix == ".svg" else {"Software": None}
        figure.savefig(target, dpi=DOTS_PER_INCH, metadata=metadata)


def _panel(axes, panel: Panel) -> None:
    for curve in panel.curves:
        points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
        marker = "o" if len(points) <= 12 else None
        axes.plot([x for x, _ in points], [y for _, y in points], label=curve.label, marker=marker, markersize=3.5)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, xscale="log" if panel.log_x else "linear")
    axes.legend(fontsize="small")
