// tries: globals that clash with headers it does not include
// expect: accepted

#include <cstdio>

int y1, y0, j1, jn, index, link, pipe, time, data, count, path, hash, left, rank, prev, next, distance;

int main() {
    if (std::scanf("%d %d", &y1, &data) != 2) return 1;
    count = y1 + data;
    path = index + link + pipe + time + hash + left + rank + prev + next + distance + y0 + j1 + jn;
    std::printf("%d\n", count + path);
}
