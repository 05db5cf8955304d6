"""Every code block of the documentation is of a kind that tests/docs/test_pages.py exercises, and code within sentences
names commands, options and settings that exist."""

import re

import pytest
from doc_blocks import PAGES, ROOT, blocks, code_spans
from usage import check_setting, check_usage

SOURCE = ROOT / "src" / "dojang"


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_is_of_a_known_kind(page: str) -> None:
    unknown = [block for block in blocks(ROOT / page) if not block.kind]
    if unknown:
        pytest.fail(
            "\n".join(f"{block.place}: {block.text.splitlines()[0]}" for block in unknown)
            + "\nIt cannot be told what these blocks are. Write each as a fence with its language: bash, python, yaml, "
            "json, cpp, or text for output, formulas and diagrams. tests/docs/test_pages.py then runs or checks it. "
            "One block has one language: write a command and a recipe as two blocks.",
            pytrace=False,
        )


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_and_settings_within_sentences_exist(page: str) -> None:
    wrong = []
    for line, span in code_spans(ROOT / page):
        try:
            if re.match(r"(?:\w+=\S+ )*dojang [a-z]", span):
                check_usage(span)
            elif re.fullmatch(r"(?:[a-z]+(?:\.[a-z_]\w*)*=\S+ ?)+", span):
                for word in span.split():
                    check_setting(word)
        except AssertionError as error:
            wrong.append(f"{page}:{line}: `{span}`: {error}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("recipe", sorted(path.name for path in (SOURCE / "recipes").glob("*.yaml")))
def test_commands_in_the_comments_of_recipes_exist(recipe: str) -> None:
    comments = re.findall(r"^#(.*)$", (SOURCE / "recipes" / recipe).read_text(), re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", "\n".join(comments))
    for line in re.findall(r"^   (dojang .*?)(?:\s+\(.*\))?$", text, re.MULTILINE):
        check_usage(line)


def test_commands_in_docstrings_help_and_errors_exist() -> None:
    """Those in backquotes; not those that a program completes ({...})."""
    wrong, checked = [], 0
    for path in sorted(SOURCE.rglob("*.py")):
        for span in re.findall(r"`(dojang [a-z][^`{}\n]*)`", path.read_text()):
            checked += 1
            try:
                check_usage(span.replace("\\", ""))
            except AssertionError as error:
                wrong.append(f"{path.relative_to(ROOT)}: `{span}`: {error}")
    assert checked > 50
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
