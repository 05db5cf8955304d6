"""Precompiled headers are given to programs that cannot tell, and to no others."""

import shutil

import pytest

from dojang import models
from dojang.judge.headers import Headers
from dojang.judge.sandbox.compiling import is_final
from dojang.judge.toolchain import find_toolchain

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def headers() -> Headers:
    tools = find_toolchain(models.cache_root())
    assert tools is not None
    return Headers(tools.compiler, tools.headers)


def ways(headers: Headers, *lines: str) -> list[str]:
    """The version of every way; a dash where there is none."""
    found, _ = headers.ways("\n".join(lines), "gnu++17", "/headers")
    return [next(name for name in ("whole", "short") if f"/{name}" in way[-1]) if way else "-" for way in found]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#include <bits/stdc++.h>", "int main() { std::cout << 1; }"], ["short", "whole"]),
        (["// A comment", "#include <bits/stdc++.h>", "#include <ext/rope>", "int main() {}"], ["short", "whole"]),
        (["#include <bits/stdc++.h>", "std::regex r;", "int main() {}"], ["whole"]),
        (["#include <bits/stdc++.h>", "#define GLUE(a, b) a##b", "int main() {}"], ["whole"]),
        # A function of C++17 that the short version does without.
        (["#include <bits/stdc++.h>", "int main() { std::cout << std::riemann_zeta(2.0); }"], ["whole"]),
        (["#include <vector>", "#include <iostream> // both", "int main() { std::cout << 1; }"], ["short", "-"]),
        # The word means something in a header that is not included: it is an error, or the program's own.
        (["#include <iostream>", "#include <vector>", "int main() { std::map<int, int> m; }"], ["-"]),
        (["#include <iostream>", "int y1 = 3;", "int main() { std::cout << y1; }"], ["-"]),
        # It means something in a header that is included, but not in the version.
        (["#include <cmath>", "int main() { return std::riemann_zeta(2.0) > 1; }"], ["-"]),
        (["#include <iostream>", "#include <regex>", "int main() {}"], ["-"]),
        (["#define private public", "#include <vector>", "int main() {}"], ["-"]),
        (["#include <vector>", "#define private public", "#include <map>", "int main() {}"], ["-"]),
        (["#pragma GCC optimize(3)", "#include <bits/stdc++.h>", "int main() {}"], ["-"]),
        (["int main() {}"], ["-"]),
    ],
)
def test_which_headers_a_program_gets(headers: Headers, lines: list[str], expected: list[str]) -> None:
    assert ways(headers, *lines) == expected


def test_words_nobody_knows(headers: Headers) -> None:
    _, strange = headers.ways("#include <bits/stdc++.h>\nvectr<int> v; int main() { sort(); }", "gnu++17", "/headers")
    assert "vectr" in strange
    assert "sort" not in strange


@pytest.mark.parametrize(
    ("error", "final"),
    [
        ("a.cpp:3:5: error: 'vectr' was not declared in this scope; did you mean 'vector'?", True),
        ("a.cpp:3:5: error: 'vectr' does not name a type", True),
        ("a.cpp:3:5: error: 'lock' was not declared in this scope", False),
        ("a.cpp:9:1: error: expected ';' before '}' token", True),
        ("a.cpp:9:1: error: expected ',' or ';' before '}' token", True),
        ("a.cpp:9:1: error: expected '}' at end of input", True),
        ("a.cpp:9:1: error: expected primary-expression before ')' token", True),
        # A type that a header would have known may be behind these.
        ("a.cpp:9:1: error: expected type-specifier before 'barrier'", False),
        ("a.cpp:9:1: error: expected class-name before '{' token", False),
        ("a.cpp:9:1: error: no matching function for call to 'lock(std::mutex&)'", False),
        ("a.cpp:1:10: fatal error: nowhere.h: No such file or directory", False),
        # What follows the first error may follow from it.
        (
            "a.cpp:3:5: error: 'lock' was not declared in this scope\n"
            "a.cpp:4:5: error: 'vectr' was not declared in this scope",
            False,
        ),
        ("", False),
    ],
)
def test_errors_that_other_headers_cannot_mend(error: str, final: bool) -> None:
    assert is_final(error, ["vectr"]) is final
