// tries: include and name things it must not use
// expect: accepted

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::filesystem::path path = std::filesystem::path("some") / "where.txt";
    std::ifstream absent(path);
    if (a > 1'000'000'000'000) return fork() || socket(AF_INET, SOCK_STREAM, 0);
    std::cout << (path.extension() == ".txt" && !absent ? a + b : -1) << '\n';
}
