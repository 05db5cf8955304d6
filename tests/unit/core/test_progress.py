"""Progress bars of commands."""

from io import StringIO

from rich.console import Console

from dojang.core.progress import ProgressBars


def test_a_bar_for_each_name_with_count_and_note() -> None:
    console = Console(file=StringIO(), force_terminal=True, color_system=None, width=100)
    with ProgressBars(console) as bars:
        bars.update("gsm8k", 1, 4)
        bars.update("maths", 0, 2, "files, 1,000 rows")
        bars.update("gsm8k", 2, 4)
        shown = bars._progress.get_renderable()
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "gsm8k" in text
    assert "2/4" in text
    assert "0/2 files, 1,000 rows" in text


def test_nothing_is_shown_if_it_is_not_wanted() -> None:
    console = Console(file=StringIO(), force_terminal=True)
    with ProgressBars(console, shown=False) as bars:
        bars.update("evaluating", 1, 2)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
