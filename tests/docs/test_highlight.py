"""docs/highlight.py: indented code blocks of a page become fences with a language."""

import runpy
from pathlib import Path

convert = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "highlight.py"))["on_page_markdown"]


def test_blocks_get_the_language_of_their_first_line() -> None:
    page = (
        "Run:\n\n    PYTHONPATH=. dojang train quickstart\n\n    pip list\n\n"
        "Then:\n\n    task:\n      rewards: {}\n\nOr:\n\n    A = 1 - B\n"
    )
    assert convert(page) == (
        "Run:\n\n```bash\nPYTHONPATH=. dojang train quickstart\n\npip list\n```\n\n"
        "Then:\n\n```yaml\ntask:\n  rewards: {}\n```\n\nOr:\n\n```text\nA = 1 - B\n```\n"
    )


def test_fences_and_lists_stay_as_they_are() -> None:
    page = "```python\ndef f():\n    return 1\n```\n\n- an item\n\n    and its second paragraph\n"
    assert convert(page) == page
