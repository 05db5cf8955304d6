"""Precompiled headers are used only for programs that they do not change."""

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


def flag_sets(headers: Headers, *lines: str) -> list[str]:
    """Header version of each flag set; `sets` for a set of headers, a dash for none."""
    found, _ = headers.flag_sets("\n".join(lines), "gnu++17", "/headers")
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
def test_choice_of_header_version(headers: Headers, lines: list[str], expected: list[str]) -> None:
    assert flag_sets(headers, *lines) == expected


@pytest.fixture
def fresh(headers: Headers, tmp_path: Path) -> Headers:
    """Headers without any sets."""
    return Headers(headers.compiler, str(tmp_path))


def test_header_set_is_precompiled_on_second_use(fresh: Headers) -> None:
    asked = ["#include <vector>", "#include <cstdio> // both", "int main() {}"]
    assert [flag_sets(fresh, *asked) for _ in range(3)] == [["-"], ["sets"], ["sets"]]
    other_order = ["/* the same set */ #include <cstdio>", "#include <vector>", "#include <vector>", "int x;"]
    assert flag_sets(fresh, *other_order) == ["sets"]
    assert flag_sets(fresh, "#include <cstdio>", "int main() {}") == ["-"]  # not a part of it


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
def test_other_includes_are_not_precompiled(fresh: Headers, lines: list[str]) -> None:
    assert [flag_sets(fresh, *lines) for _ in range(3)] == [["-"]] * 3


def test_read_only_cache_is_ignored(headers: Headers) -> None:
    sealed = Headers(headers.compiler, "/proc/nowhere")
    assert [flag_sets(sealed, "#include <cstdio>", "int main() {}") for _ in range(3)] == [["-"]] * 3


def test_undeclared_names(headers: Headers) -> None:
    _, undeclared = headers.flag_sets(
        "#include <bits/stdc++.h>\nvectr<int> v; int main() { sort(); }", "gnu++17", "/headers"
    )
    assert "vectr" in undeclared
    assert "sort" not in undeclared


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
        # Later errors may follow from the first.
        (
            "a.cpp:3:5: error: 'lock' was not declared in this scope\n"
            "a.cpp:4:5: error: 'vectr' was not declared in this scope",
            False,
        ),
        ("", False),
    ],
)
def test_final_compile_errors(error: str, final: bool) -> None:
    assert is_final(error, ["vectr"]) is final
