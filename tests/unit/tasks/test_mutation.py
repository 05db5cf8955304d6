"""Programs with one thing changed."""

from dojang.tasks.mutation import different_value, mutants


def test_python_functions_are_mutated() -> None:
    source = 'X = 1\ndef f(a):\n    """Says 2."""\n    if a < 3:\n        return a + 1\n    return 0\n'
    made = list(mutants(source))
    assert "if a >= 3" in made[0]
    assert "return a - 1" in made[1]
    assert any("if a < 4" in each for each in made)
    assert any("return None" in each for each in made)
    assert all("X = 1" in each and "Says 2." in each for each in made)
    assert list(mutants(source)) == made


def test_python_without_functions_is_mutated_anywhere() -> None:
    assert "print(int(input()) - 1)" in next(mutants("print(int(input()) + 1)"))


def test_invalid_python_has_no_mutants() -> None:
    assert list(mutants("print 1")) == []


def test_cpp_tokens_are_mutated() -> None:
    source = (
        "#include <vector>\n#define N 7\n// a == b\n"
        'int main() { std::vector<int> v[9]; if (x == 1 && y < 2) cout << "a == 5"; n += 3; }'
    )
    made = list(mutants(source, "cpp17"))
    assert "x != 1" in made[0]
    assert "y >= 2" in made[1]
    assert "n -= 3" in made[2]
    assert "|| y" in made[3]
    assert made[4:] == [
        source.replace("== 1 ", "== 2 "),
        source.replace("y < 2", "y < 3"),
        source.replace("+= 3", "+= 4"),
    ]


def test_different_value_differs() -> None:
    for value in (True, 0, 1.5, "", [], (), {}, {1}, None):
        assert different_value(value) != value
