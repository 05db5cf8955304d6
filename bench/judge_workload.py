"""Programs to judge, in the proportions a model in training sends them: right, wrong, broken and endless.

Three problems with 20 tests each; the last test of each needs real processor time. A program is a problem's text
with one slip in it or none, under names and headers of its own, so that no two sources of a seed are equal and
nothing can be answered from memory. What becomes of each is known beforehand. Programs that attack the judge are
not here: the usual designs do not survive them, and a ratio needs both sides to finish.
"""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Literal

import numpy as np

from dojang.programs import IoTest, Limits, TestSuite
from dojang.types import Outcome

Language = Literal["cpp17", "python3"]
Kind = Literal["right", "wrong", "broken", "endless"]

TESTS = 20
TIME_LIMIT_S = 2.0
MIX: Mapping[Language, Mapping[Kind, int]] = {
    "cpp17": {"right": 36, "wrong": 16, "broken": 8, "endless": 4},
    "python3": {"right": 36, "wrong": 16, "broken": 8, "endless": 0},
}
TRUTH: Mapping[Kind, Outcome] = {
    "right": Outcome.ACCEPTED,
    "wrong": Outcome.WRONG,
    "broken": Outcome.COMPILE_ERROR,
    "endless": Outcome.TIME_LIMIT,
}


@dataclass(frozen=True)
class Program:
    """A source and what must become of it."""

    source: str
    test_suite: TestSuite
    truth: Outcome


@dataclass(frozen=True)
class Workload:
    """Programs of one language, in the order they are handed in."""

    language: Language
    programs: tuple[Program, ...]


@dataclass(frozen=True)
class Family:
    """A problem: its tests, and its solution with slips marked as @{right ~ slip: instead}@."""

    test: Callable[[Random, Language, bool], IoTest]
    """(random stream, language, heavy) -> test; heavy ones stay within a quarter of the limit on a slow core."""
    headers: str
    cpp: str
    python: str


def workload(language: Language, mix: Mapping[Kind, int], seed: int) -> Workload:
    """A shuffled batch with so many programs of each kind; the same for the same seed."""
    random = Random(f"{language} {seed}")
    suites = [_suite(family, language, random) for family in FAMILIES]
    programs = []
    for kind, count in mix.items():
        for place in range(count):
            which = place % len(FAMILIES)
            family, note = FAMILIES[which], f"seed {seed}, {kind} {place}"
            headers = family.headers if place % 8 == 7 else "bits/stdc++.h"
            source = _source(family, language, _slip(kind, place), headers, note, random)
            programs.append(Program(source, suites[which], TRUTH[kind]))
    random.shuffle(programs)
    if len({program.source for program in programs}) < len(programs):
        raise AssertionError("two programs of a workload are equal: a cache would answer one of them")
    return Workload(language, tuple(programs))


def mixed(language: Language, programs: int) -> dict[Kind, int]:
    """The language's mix scaled to so many programs, by largest remainder."""
    mix = MIX[language]
    exact = {kind: programs * count / sum(mix.values()) for kind, count in mix.items()}
    counts = {kind: int(share) for kind, share in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: counts[kind] - exact[kind])
    for kind in by_remainder[: programs - sum(counts.values())]:
        counts[kind] += 1
    return counts


def _suite(family: Family, language: Language, random: Random) -> TestSuite:
    tests = tuple(family.test(random, language, place == TESTS - 1) for place in range(TESTS))
    return TestSuite(tests, Limits(cpu_s=TIME_LIMIT_S))


def _slip(kind: Kind, place: int) -> str:
    """Most wrong programs fail from the first tests on, a quarter only at the last: no early exit helps there."""
    if kind == "wrong":
        return "late" if (place // len(FAMILIES)) % 4 == 3 else "early"
    return kind


def _source(family: Family, language: Language, slip: str, headers: str, note: str, random: Random) -> str:
    def chosen(mark: re.Match[str]) -> str:
        right, *slips = mark[1].split(" ~ ")
        alternatives = dict(each.split(": ", 1) for each in slips)
        return alternatives.get(slip, right)

    text = family.cpp if language == "cpp17" else family.python
    if slip != "right" and f"~ {slip}: " not in text:
        raise AssertionError(f"a problem has no slip named {slip}")
    return Template(re.sub(r"@\{(.*?)\}@", chosen, text)).substitute(
        headers="\n".join(f"#include <{header}>" for header in headers.split()),
        note=f"Approach: {random.choice(('sort first', 'straightforward', 'think in layers', 'greedy'))} ({note})",
        a=random.choice(("a", "nums", "values", "arr", "items")),
        best=random.choice(("ans", "res", "total", "result", "best")),
    )


def _sum_test(random: Random, language: Language, heavy: bool) -> IoTest:
    n = 100_000 if heavy else random.randint(1, 2000)
    values = [random.randint(-(10**9), 10**9) for _ in range(n)]
    answer = sum(value * place for place, value in enumerate(sorted(values), 1)) % 1_000_000_007
    return IoTest(f"{n}\n{' '.join(map(str, values))}\n", f"{answer}\n")


def _knapsack_test(random: Random, language: Language, heavy: bool) -> IoTest:
    n, capacity = random.randint(2, 40), random.randint(20, 400)
    if heavy:
        n, capacity = (10_000, 20_000) if language == "cpp17" else (60, 10_000)
    items = [(random.randint(1, 100), random.randint(1, 10**6)) for _ in range(n)]
    best = np.zeros(capacity + 1, dtype=np.int64)
    for weight, value in items:
        if weight <= capacity:
            best[weight:] = np.maximum(best[weight:], best[:-weight] + value)
    counts = Counter(weight for weight, _ in items)
    common = sorted(counts, key=lambda weight: (-counts[weight], weight))[:3]
    lines = "".join(f"{weight} {value}\n" for weight, value in items)
    return IoTest(f"{n} {capacity}\n{lines}", f"{best.max()} {len(counts)}\n{' '.join(map(str, common))}\n")


def _paths_test(random: Random, language: Language, heavy: bool) -> IoTest:
    n = (20_000 if language == "cpp17" else 10_000) if heavy else random.randint(2, 200)
    edges = [(random.randint(1, n), random.randint(1, n), random.randint(1, 10**6)) for _ in range(2 * n)]
    near: list[list[tuple[int, int]]] = [[] for _ in range(n + 1)]
    for u, v, length in edges:
        near[u].append((v, length))
        near[v].append((u, length))
    distance, queue = {1: 0}, [(0, 1)]
    while queue:
        so_far, u = heapq.heappop(queue)
        if so_far > distance[u]:
            continue
        for v, length in near[u]:
            if so_far + length < distance.get(v, so_far + length + 1):
                distance[v] = so_far + length
                heapq.heappush(queue, (distance[v], v))
    distinct = len({(min(u, v), max(u, v)) for u, v, _ in edges})
    lines = "".join(f"{u} {v} {length}\n" for u, v, length in edges)
    return IoTest(f"{n} {len(edges)}\n{lines}", f"{max(distance.values())} {len(distance)}\n{distinct}\n")


SUM = Family(
    _sum_test,
    "iostream vector algorithm",
    cpp="""\
$headers
using namespace std;

// $note
const long long MOD = 1000000007LL;

int main() {
    ios::sync_with_stdio(false);
    cin.tie(nullptr);

    int n;
    cin >> n;
    @{ ~ late: if (n > 2000) n = 2000;}@
    @{vector<long long> ~ broken: vectr<long long>}@ $a(n);
    for (auto& x : $a) cin >> x;
    sort($a.begin(), $a.end());

    long long $best = 0;
    for (int i = 0; i < n; @{i++ ~ endless: }@) {
        long long value = (($a[i] % MOD) + MOD) % MOD;
        $best = ($best + value * (i@{ + 1 ~ early: }@)) % MOD;
    }
    cout << $best << "\\n";
    return 0;
}
""",
    python="""\
import sys


# $note
def main():
    data = sys.stdin.buffer.read().split()
    n = int(data[0])
    $a = sorted(map(int, data[1 : @{n + 1 ~ late: min(n, 2000) + 1}@]@{) ~ broken: }@)
    $best = 0
    i = 0
    while i < len($a):
        $best += $a[i] * (i@{ + 1 ~ early: }@)
        @{i += 1 ~ endless: $best %= 1000000007}@
    print($best % 1000000007)


main()
""",
)

KNAPSACK = Family(
    _knapsack_test,
    "iostream vector map algorithm utility string",
    cpp="""\
$headers
using namespace std;

typedef long long ll;

// $note
struct Item {
    int weight;
    ll value;
};

ll solve(const vector<Item>& $a, int capacity) {
    vector<vector<ll>> dp(2, vector<ll>(capacity + 1, 0));
    int cur = 0;
    for (const auto& item : $a) {
        int nxt = cur ^ 1;
        for (int j = 0; j <= capacity; @{j++ ~ endless: }@) {
            dp[nxt][j] = dp[cur][j];
            if (j >= item.weight) {
                ll take = dp[@{cur ~ early: nxt}@][j - item.weight] + item.value;
                dp[nxt][j] = max(dp[nxt][j], take);
            }
        }
        cur = nxt;
    }
    return *max_element(dp[cur].begin(), dp[cur].end());
}

int main() {
    ios_base::sync_with_stdio(false);
    cin.tie(NULL);

    int n, capacity;
    cin >> n >> capacity;
    vector<Item> $a(n);
    map<int, int> freq;
    for (int i = 0; i < n; i++) {
        cin >> $a[i].weight >> $a[i].value;
        freq[$a[i].weight]++;
    }
    ll $best = solve($a, @{capacity ~ late: min(capacity, 2000) ~ broken: capacty}@);

    vector<pair<int, int>> order(freq.begin(), freq.end());
    sort(order.begin(), order.end(), [](const pair<int, int>& x, const pair<int, int>& y) {
        if (x.second != y.second) return x.second > y.second;
        return x.first < y.first;
    });
    string line;
    for (size_t i = 0; i < order.size() && i < 3; i++) {
        if (i) line += " ";
        line += to_string(order[i].first);
    }
    cout << $best << " " << freq.size() << "\\n" << line << "\\n";
    return 0;
}
""",
    python="""\
from collections import Counter


# $note
def solve($a, capacity):
    dp = [0] * (capacity + 1)
    for weight, value in $a:
        j = capacity
        while j >= weight:
            take = dp[j - weight] + value
            if take > dp[j]:
                dp[j] = take
            @{j -= 1 ~ endless: capacity -= 1}@
    return dp[capacity]


def main():
    n, capacity = map(int, input().split())
    $a = [tuple(map(int, input().split())) for _ in range(n)]
    freq = Counter(weight for weight, _ in $a)
    order = sorted(freq, key=lambda w: (-freq[w], w))
    $best = solve($a, @{capacity ~ late: min(capacity, 2000)}@)@{ ~ early:  + 1}@
    print($best, len(freq)@{) ~ broken: }@
    print(*order[:3])


main()
""",
)

PATHS = Family(
    _paths_test,
    "iostream vector queue set utility functional climits algorithm",
    cpp="""\
$headers
using namespace std;

#define pb push_back
typedef long long ll;
typedef pair<ll, int> pli;

// $note
class Graph {
public:
    explicit Graph(int n) : n_(n), adj_(n + 1) {}

    void addEdge(int u, int v, ll w) {
        adj_[u].pb({v, w});
        @{adj_[v].pb({u, w}); ~ early: }@
    }

    vector<ll> shortest(int source) const {
        vector<ll> dist(n_ + 1, LLONG_MAX);
        priority_queue<pli, vector<pli>, greater<pli>> pq;
        dist[source] = 0;
        pq.push({0, source});
        while (!pq.empty()) {
            auto [d, u] = pq.top();
            @{pq.pop(); ~ endless: }@
            if (d > dist[u]) continue;
            for (const auto& [v, w] : adj_[u]) {
                if (d + w < dist[v]) {
                    dist[v] = d + w;
                    pq.push({dist[v], v});
                }
            }
        }
        return dist@{; ~ broken: }@
    }

private:
    int n_;
    vector<vector<pair<int, ll>>> adj_;
};

int main() {
    ios::sync_with_stdio(false);
    cin.tie(nullptr);

    int n, m;
    cin >> n >> m;
    Graph graph(n);
    set<pair<int, int>> distinct;
    for (int i = 0; i < @{m ~ late: min(m, 2000)}@; i++) {
        int u, v;
        ll w;
        cin >> u >> v >> w;
        graph.addEdge(u, v, w);
        distinct.insert({min(u, v), max(u, v)});
    }

    ll $best = 0;
    int reach = 0;
    for (ll d : graph.shortest(1)) {
        if (d == LLONG_MAX) continue;
        $best = max($best, d);
        reach++;
    }
    cout << $best << " " << reach << "\\n" << distinct.size() << "\\n";
    return 0;
}
""",
    python="""\
import heapq
import sys


# $note
def main()@{: ~ broken: }@
    data = list(map(int, sys.stdin.buffer.read().split()))
    n, m = data[0], @{data[1] ~ late: min(data[1], 2000)}@
    $a = [[] for _ in range(n + 1)]
    distinct = set()
    for i in range(m):
        u, v, w = data[2 + 3 * i : 5 + 3 * i]
        $a[u].append((v, w))
        @{$a[v].append((u, w)) ~ early: pass}@
        distinct.add((min(u, v), max(u, v)))
    dist = [float("inf")] * (n + 1)
    dist[1] = 0
    heap = [(0, 1)]
    while heap:
        d, u = @{heapq.heappop(heap) ~ endless: heap[0]}@
        if d > dist[u]:
            continue
        for v, w in $a[u]:
            if d + w < dist[v]:
                dist[v] = d + w
                heapq.heappush(heap, (d + w, v))
    $best = [d for d in dist if d < float("inf")]
    print(max($best), len($best))
    print(len(distinct))


main()
""",
)

FAMILIES = (KNAPSACK, PATHS, SUM)
