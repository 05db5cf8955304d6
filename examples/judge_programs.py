"""The judge alone: compile and run programs on tests, in a sandbox, with limits on time and memory.

python examples/judge_programs.py
"""

import dojang

ADD = "#include <iostream>\nint main() { long long a, b; std::cin >> a >> b; std::cout << a + b; }"
OVERFLOW = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"
LOOP = "while True: pass"
TESTS = [("1 2", "3"), ("2000000000 2000000000", "4000000000")]


def main() -> None:
    for name, code, language in (("add", ADD, "cpp17"), ("overflow", OVERFLOW, "cpp17"), ("loop", LOOP, "python3")):
        found = dojang.judge_program(code, TESTS, language, limits={"cpu_s": 1, "memory_mb": 256})
        print(f"{name}: {found.outcome}, {found.passed} of {found.total} tests, sandbox: {found.isolation}")
        for result in found.results:
            costs = f"{result.cpu_s * 1000:.0f} ms, {result.memory_mb:.0f} MB"
            print(f"  test {result.test}: {result.outcome} in {costs} {result.detail}")

    calls = {"function": "double", "calls": [{"args": [2], "expected": 4}, {"args": [-1], "expected": -2}]}
    found = dojang.judge_program("def double(x):\n    return 2 * x", calls)
    print(f"a function: {found.outcome}, {found.passed} of {found.total} calls")

    verdict = dojang.grade("maths", "1/2", "Half of one is \\boxed{0.5}.")
    print(f"a formula: {verdict.outcome}, reward {verdict.reward:g}")


if __name__ == "__main__":
    main()
