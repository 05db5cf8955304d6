"""Precompiled headers are given to programs that cannot tell, and to no others."""

import shutil
from pathlib import Path

import pytest

from dojang.core.paths import cache_root
from dojang.judge.headers import Headers
from dojang.judge.sandbox.compiling import is_final
from dojang.judge.toolchain import find_toolchain

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def headers() -> Headers:
    tools = find_toolchain(cache_root())
    assert tools is not None
    return Headers(tools.compiler, tools.headers)


def ways(headers: Headers, *lines: str) -> list[str]:
    """The version of every way, or that it is a set; a dash where there is none."""
    found, _ = headers.ways("\n".join(lines), "gnu++17", "/headers")
    return [next(name for name in ("whole", "short", "sets") if name in way[-1]) if way else "-" for way in found]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#include <bits/stdc++.h>", "int main() { std::cout << 1; }"], ["short", "whole"]),
        (["// A comment", "#include <bits/stdc++.h>", "#include <ext/rope>", "int main() {}"], ["short", "whole"]),
        # Members and locals may be called like members of what is left out.
        (["#include <bits/stdc++.h>", "int main() { int sum = 0, path = 1, start = 2; }"], ["short", "whole"]),
        (["#include <bits/stdc++.h>", "std::regex r;", "int main() {}"], ["whole"]),
        (["#include <bits/stdc++.h>", "std::reg\\", "ex r;", "int main() {}"], ["whole"]),
        (["#include <bits/stdc++.h>", "#define GLUE(a, b) a##b", "int main() {}"], ["whole"]),
        (["#include <bits/stdc++.h>", "%:define GLUE(a, b) a%:%:b", "int main() {}"], ["-"]),
        # A function of C++17 that the short version does without.
        (["#include <bits/stdc++.h>", "int main() { std::cout << std::riemann_zeta(2.0); }"], ["whole"]),
        (["#pragma GCC optimize(3)", "#include <bits/stdc++.h>", "int main() {}"], ["-"]),
        (["int main() {}"], ["-"]),
    ],
)
def test_which_version_a_program_gets(headers: Headers, lines: list[str], expected: list[str]) -> None:
    assert ways(headers, *lines) == expected


@pytest.fixture
def fresh(headers: Headers, tmp_path: Path) -> Headers:
    """Without any sets yet."""
    return Headers(headers.compiler, str(tmp_path))


def test_a_set_of_headers_is_precompiled_when_it_is_met_again(fresh: Headers) -> None:
    asked = ["#include <vector>", "#include <cstdio> // both", "int main() {}"]
    assert [ways(fresh, *asked) for _ in range(3)] == [["-"], ["sets"], ["sets"]]
    other_order = ["/* the same set */ #include <cstdio>", "#include <vector>", "#include <vector>", "int x;"]
    assert ways(fresh, *other_order) == ["sets"]
    assert ways(fresh, "#include <cstdio>", "int main() {}") == ["-"]  # not a part of it


@pytest.mark.parametrize(
    "lines",
    [
        ["#include <cstdio>", "#include <regex>", "int main() {}"],
        ["#include <cstdio> #include <map>", "int main() {}"],
        ["#include <cstdio> // goes on \\", "#include <regex>", "#include <map> int main() {}"],
        ["#define private public", "#include <cstdio>", "int main() {}"],
        ["#include <cstdio>", "#define private public", "#include <map>", "int main() {}"],
        ['#include "cstdio.h"', "int main() {}"],
        ["#include <../secret>", "int main() {}"],
    ],
)
def test_what_is_no_plain_set_is_not_precompiled(fresh: Headers, lines: list[str]) -> None:
    assert [ways(fresh, *lines) for _ in range(3)] == [["-"]] * 3


def test_a_cache_that_can_only_be_read_is_no_obstacle(headers: Headers) -> None:
    sealed = Headers(headers.compiler, "/proc/nowhere")
    assert [ways(sealed, "#include <cstdio>", "int main() {}") for _ in range(3)] == [["-"]] * 3


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
