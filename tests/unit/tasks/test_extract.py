import time
from random import Random

import pytest

from dojang.tasks.extract import SPELLINGS, extract_code

PROGRAM = "#include <iostream>\nint main() {\n    std::cout << 1;\n}"
OTHER = "int main() { return 2; }"
PYTHON = "def f(x):\n    return x + 1\n\nprint(f(int(input())))"


def cpp(text: str) -> str | None:
    return extract_code(text, "cpp17")


def py(text: str) -> str | None:
    return extract_code(text, "python3")


@pytest.mark.parametrize(
    "tag",
    [
        *("cpp", "c++", "C++", "cc", "cxx", "CPP", "Cpp", "cpp17", "cpp20", "c++17", " cpp", "cpp "),
        *("cpp title=main.cpp", "{.cpp}", "cpp{1,3}", "cpp:main.cpp", "cpp, linenos", '{.cpp title="x"}'),
    ],
)
@pytest.mark.parametrize("fence", ["```", "~~~", "````", "~~~~~"])
@pytest.mark.parametrize("language", ["cpp17", "cpp20"])
def test_spellings_of_cpp(tag: str, fence: str, language: str) -> None:
    text = f"Here:\n{fence}{tag}\n{PROGRAM}\n{fence}\nDone."
    assert extract_code(text, language) == PROGRAM
    assert py(text) is None


@pytest.mark.parametrize("tag", ["python", "py", "python3", "py3", "Python", "PYTHON", "python title='a b'"])
def test_spellings_of_python(tag: str) -> None:
    text = f"```{tag}\n{PYTHON}\n```"
    assert py(text) == PYTHON
    assert cpp(text) is None


@pytest.mark.parametrize("tag", ["c", "java", "text", "output", "python2", "html", "cppx", "main.cpp", "plaintext"])
def test_another_language_never_counts(tag: str) -> None:
    block = f"```{tag}\n{PROGRAM}\n```\n"
    assert cpp(block) is None
    assert cpp(f"```cpp\n{OTHER}\n```\n{block}") == OTHER
    assert cpp(f"```\n{OTHER}\n```\n{block}") == OTHER


@pytest.mark.parametrize(
    "text",
    [
        f"<code>\n{PROGRAM}\n</code>",
        f"<code>{PROGRAM}</code>",
        f"The answer: <code>{PROGRAM}</code> as asked.",
        f"<CODE>\n{PROGRAM}\n</CODE>",
        f'<code language="cpp">\n{PROGRAM}\n</code>',
        f"<code lang=C++>\n{PROGRAM}\n</code >",
        f'<code class="hljs language-cpp">\n{PROGRAM}\n</code>',
        f'<code id="x">\n{PROGRAM}\n</code>',
        f"<code>\n```cpp\n{PROGRAM}\n```\n</code>",
        f"<code>\n```\n{PROGRAM}\n```\n</code>",
        f"<code>\n\n```cpp\n{PROGRAM}\n```</code>",
        f"<code>\nMy solution:\n```cpp\n{PROGRAM}\n```\nIt works.\n</code>",
        f"<code>\n```cpp\n{PROGRAM}\n</code>",
        f"<code>\n```\n{PROGRAM}\n</code>\n```",
        f"```cpp\n<code>\n{PROGRAM}\n</code>\n```",
        f"```\n<code>\n{PROGRAM}\n</code>\n```",
        f"```cpp\n{PROGRAM}\n```",
        f"```cpp\n{PROGRAM}\n````",
        f"```cpp\n{PROGRAM}\n  ```  \n",
        f"```\n{PROGRAM}\n```",
        f"```title=main\n{PROGRAM}\n```",
        f"```cpp\n\n\n{PROGRAM}\n \n\n```",
        f"I put it in <code> tags.\n<code>\n{PROGRAM}\n</code>",
        f"I put it in `<code>` and `</code>`.\n```cpp\n{PROGRAM}\n```\nI put it in `<code>` and `</code>`.",
        f"I put it in <code> tags.\n```cpp\n{PROGRAM}\n```",
        f"```\n{PROGRAM}\n```\nI could have used <code> tags.",
        f"<code>\n{PROGRAM}\n</code>\nThe <code>main</code> function prints <code>1</code>.",
        f"```\n{PROGRAM}\n```\nThe <code>main</code> function prints.",
        f"```markdown\nSee:\n```cpp\n{PROGRAM}\n```\n```",
        f"```\nstray\n```cpp\n{PROGRAM}\n```",
        f"```cpp\n{OTHER}\n\nThat was wrong. Again:\n```cpp\n{PROGRAM}\n```",
        f"<code>\n{OTHER}\nThat was wrong. Again:\n<code>\n{PROGRAM}\n</code>",
        f"```cpp\n{OTHER}\n```\n```cpp\n{PROGRAM}\n```",
        f"<code>{OTHER}</code>\n```cpp\n{PROGRAM}\n```",
        f"```cpp\n{OTHER}\n```\n<code>\n{PROGRAM}\n</code>",
        f"<code>\n{OTHER}\n</code>\n<code>\n{PROGRAM}\n</code>",
        f"<code>\n{PROGRAM}\n</code>\n```\n1 2 3\n```",
        f"```\n1 2 3\n```\n```cpp\n{PROGRAM}\n```\n```\n6\n```",
        f"```\n1 2 3\n```\n```\n{PROGRAM}\n```",
        f"```cpp\n{PROGRAM}\n```\n```cpp\n```",
        f"```cpp\n{PROGRAM}\n```\n<code> </code>",
        f"<code>\n{PROGRAM}\n</code>\n<code lang='python'>\n{PYTHON}\n</code>",
        f"<code>\n{PROGRAM}\n</code>\n<code>\n```python\n{PYTHON}\n```\n</code>",
        f"```cpp\n{PROGRAM}\n```\n```html\n<code>\nx\n</code>\n```",
        f"```cpp\n{PROGRAM}\n```\nFaster:\n```cpp\nint main() {{ cut",
        f"```cpp\n{PROGRAM}\n```\nFaster:\n<code>\nint main() {{ cut",
    ],
)
def test_where_the_program_is(text: str) -> None:
    assert cpp(text) == PROGRAM
    assert cpp(text.replace("\n", "\r\n")) == PROGRAM


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        PROGRAM,
        "```cpp\n```",
        "```cpp\n  \n\n```",
        "<code></code>",
        "<code>\n \n</code>",
        "<code>\n```cpp\n```\n</code>",
        f"```cpp\n{PROGRAM}",
        f"```cpp\n{PROGRAM}\n``",
        f"```cpp\n{PROGRAM}\n~~~",
        f"````cpp\n{PROGRAM}\n```",
        f"```cpp\n{PROGRAM}```",
        f"<code>\n{PROGRAM}",
        f"<code>\n{PROGRAM}\n<code>",
        f"{PROGRAM}\n</code>",
        f"Here: ```cpp\n{PROGRAM}\n```",
        f"```cpp {OTHER}```",
        f"```cpp\n{PROGRAM}\n<code>\n{OTHER}\n</code>",
        f'<code language="python">\n{PYTHON}\n</code>',
        f"<code>\n```python\n{PYTHON}\n```\n</code>",
        f"```\n1 2 3\n```\n```cpp\n{PROGRAM}",
        f"```\n1 2 3\n```\n<code>\n{PROGRAM}",
        "use vector<code> and set</code>",
        f"````markdown\n```cpp\n{PROGRAM}\n```\n````",
    ],
)
def test_no_program(text: str) -> None:
    assert cpp(text) is None
    assert cpp(text.replace("\n", "\r\n")) is None


@pytest.mark.parametrize(
    "program",
    [
        "struct code { int x; };\nstd::vector<code> v;\nint main() {}",
        'int main() { puts("<code>x</code>"); }',
        "int User;\nvoid f() {\nUser:\n  goto User;\n}",
        "int a[9];\nenum { INST };\nint main() { return a[INST]; }",
        "/*\n~~~\n*/\nint main() {}",
        "// ``` is a fence\nint main() {}",
        'const char* s = R"(\n    ```\n    )";\nint main() {}',
    ],
)
def test_markup_inside_a_program_is_text(program: str) -> None:
    assert cpp(f"```cpp\n{program}\n```") == program
    assert cpp(f"```cpp\n{OTHER}\n```\nBetter:\n```c++\n{program}\n```\nUser: thanks\n```cpp\nint x;\n```") == program
    if "</code>" not in program:
        assert cpp(f"<code>\n{program}\n</code>") == program


def test_a_fence_in_a_docstring() -> None:
    program = 'def f(x):\n    """Adds one.\n\n    ```python\n    f(1)\n    ```\n    """\n    return x + 1'
    assert py(f"```python\n{program}\n```") == program
    untagged = program.replace("```python", "```")
    assert py(f"<code>\n{untagged}\n</code>") == untagged


@pytest.mark.parametrize("indent", ["  ", "    ", "\t", "        "])
@pytest.mark.parametrize("mark", ["", "- ", "1. ", "12) "])
def test_indentation_is_removed(indent: str, mark: str) -> None:
    inner = indent + " " * len(mark)
    lines = "\n".join(inner + line if line else line for line in PYTHON.split("\n"))
    assert py(f"Steps:\n{indent}{mark}```python\n{lines}\n{inner}```") == PYTHON
    assert py(f"Steps:\n{indent}{mark}```python\n{PYTHON}\n{inner}```") is not None
    assert py(f"Steps:\n{indent}<code>\n{lines}\n{indent}</code>") == PYTHON


def test_line_indented_less_than_its_fence_loses_only_blanks() -> None:
    assert py("  ```python\nx = 1\n if x:\n   y\n  ```") == "x = 1\nif x:\n y"


@pytest.mark.parametrize(
    "marker",
    [
        *("<|im_start|>user\n", "<|im_end|>", "<|user|>", "<|eot_id|>", "<|endoftext|>", "<\uff5cUser\uff5c>"),
        *("<start_of_turn>user\n", "<end_of_turn>", "\nUser: ", "\nHuman: ", "[INST]"),
    ],
)
def test_invented_next_turn_is_ignored(marker: str) -> None:
    ours, theirs = f"```cpp\n{PROGRAM}\n```\n", f"again\n```cpp\n{OTHER}\n```\n<code>\n{OTHER}\n</code>"
    assert cpp(f"{ours}{marker}{theirs}") == PROGRAM
    assert cpp(f"No idea.\n{marker}{theirs}") is None


def test_a_template_token_ends_the_turn_in_the_middle_of_a_program() -> None:
    assert cpp("```cpp\nint main() {<|im_end|>}\n```") is None


def test_user_in_a_sentence_is_not_a_turn() -> None:
    assert cpp(f"The User: a person.\n  User: x\n```cpp\n{PROGRAM}\n```") == PROGRAM


def test_thinking_is_ignored() -> None:
    thought = f"<think>Maybe\n```cpp\n{OTHER}\n```\n"
    assert cpp(f"{thought}no.</think>\n<code>\n{PROGRAM}\n</code>") == PROGRAM
    assert cpp(f"{thought}```cpp\nunclosed</think>\n```cpp\n{PROGRAM}\n```") == PROGRAM
    assert cpp(f"{thought}no.</think>I do not know.") is None
    assert cpp(thought) is None
    assert cpp(f"```cpp\n{OTHER}\n```\nWait.\n</think>\n```cpp\n{PROGRAM}\n```") == PROGRAM  # the prompt opened it
    assert cpp(f"<think></think>```\n\n<think>\n```cpp\n{PROGRAM}\n```") is None


def tagged(text: str) -> str | None:
    """For a prompt that asks for <think> and <code>."""
    return extract_code(text, "cpp17", asks_for_tags=True)


@pytest.mark.parametrize(
    "answer",
    [
        f"<code>\n{PROGRAM}\n</code>",
        f"<code>\n{PROGRAM}\n</code>\n\n### Explanation:\n1. It reads `n`.\n",
        f"<code>\n\n```cpp\n{PROGRAM}\n```\n\n</code>\nThis solution works as follows",
        f"```cpp\n{OTHER}\n```\nBetter:\n<code>\n{PROGRAM}\n</code>",
        f"<code>\n{OTHER}\n</code>\nNo:\n<code>\n{PROGRAM}\n</code>\n```sh\ng++ a.cpp\n```",
        f"Here is the solution: <code>\n{PROGRAM}\n</code>\n<|im_end|>\n<code>\n{OTHER}\n</code>",
    ],
)
def test_code_tags_after_unclosed_thinking_count_if_the_prompt_asks_for_them(answer: str) -> None:
    assert tagged(f"<think>\nWe add.\n\n{answer}") == PROGRAM
    assert cpp(f"<think>\nWe add.\n\n{answer}") is None


@pytest.mark.parametrize(
    "draft",
    [
        "",
        f"```cpp\n{PROGRAM}\n```",  # a fence is a draft
        f"<code>\n{PROGRAM}\n",
        f"<code>\n{PROGRAM}\n</code>\nWait, no:\n<code>\nint main() {{",  # it is being corrected
        f"<code>\n{PROGRAM}\n</code>\nWait, no:\n```cpp\nint main() {{",
        f"<code>\n{PROGRAM}\n</code>\nWait, no:\n```cpp\n{OTHER}\n```\n",
        f"<code>\n{PROGRAM}\n</code>\nWait.\n<think>\nno",
        "I will write it in <code></code> tags, as in `<code>int x;</code>`.",
        "Use <code>long long</code> here.",
        "<code>\n\n</code>",
        "<code>\n```python\nprint(1)\n```\n</code>",
    ],
)
def test_drafts_in_unclosed_thinking_do_not_count(draft: str) -> None:
    assert tagged(f"<think>\nMaybe:\n{draft}") is None


def test_after_thinking_the_rules_are_the_same_for_prompts_that_ask_for_tags() -> None:
    assert tagged(f"<think><code>\n{OTHER}\n</code></think>\n```cpp\n{PROGRAM}\n```") == PROGRAM
    assert tagged(f"<think><code>\n{OTHER}\n</code></think>\nI do not know.") is None


def test_an_unknown_language() -> None:
    with pytest.raises(ValueError, match="unknown language 'cobol'; known: cpp17, cpp20, python3"):
        extract_code("", "cobol")


HOSTILE = [
    "`",
    "~",
    "```\n",
    "```cpp\n",
    "```cpp\nx\n```\n",
    "``` `\n",
    "~~~ ```\n",
    "<code>",
    "<code>\n",
    "<code ",
    "<code lang= ",
    "<code",
    "</code>",
    "<code></code>",
    "<code>x</code>",
    "\n<code>\n```python\nx\n```\n</code>",
    "`<code>",
    "`<code>`",
    "<code>`",
    " ",
    "\t",
    "\n",
    "- ",
    "1. ",
    "<think>",
    "</think>",
    "<|",
    "\nUser",
    "[INST",
    "\r",
    "\0",
]


@pytest.mark.parametrize("piece", [*HOSTILE, "".join(HOSTILE)])
def test_long_text_takes_linear_time(piece: str) -> None:
    size = 250_000 if piece in HOSTILE else 1_000_000
    text = piece * (size // len(piece))
    started = time.process_time()
    extract_code(text, "cpp17")
    assert time.process_time() - started < 10 * size / 1_000_000  # quadratic time would be many minutes


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("head", ["```cpp\n", "<code>\n ", "````\n", " ```\n"])
def test_hostile_text_in_open_and_closed_blocks(piece: str, head: str) -> None:
    text = head + piece * (50_000 // len(piece))
    started = time.process_time()
    for end in ("", "\n```", "</code>", "`x\n```\n</code>"):
        extract_code(text + end, "cpp17")
    assert time.process_time() - started < 5


def test_fences_of_decreasing_length_take_linear_time() -> None:
    text = "\n".join("`" * length for length in range(1400, 2, -1)) + "<code>" * 80_000
    started = time.process_time()
    assert cpp(text) is None
    assert time.process_time() - started < 5


def test_random_markup() -> None:
    """Whatever comes out was in the text, holds something, and has no markup at its edges; padding changes nothing."""
    random = Random(4)
    pieces = ["```", "```cpp", "```python", "````", "~~~", "~~~cpp", "<code>", "</code>", "\n", "\n", "\n", "x = 1"]
    pieces += ["  ", "User:", "`", "<code lang='py'>", "if x:", "- "]
    found = 0
    for _ in range(5_000):
        text = "".join(random.choice(pieces) for _ in range(random.randrange(20)))
        for language in SPELLINGS:
            program = extract_code(text, language)
            assert program is None or (program.strip() and not program.startswith("\n")), (text, program)
            assert extract_code(f"Sure.\n\n{text}", language) == program
            assert extract_code(f"<think>\n```cpp\n</think>{text}", language) == program
            found += program is not None
    assert found > 200
