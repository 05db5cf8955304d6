// tries: become a shell
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() { execl("/bin/sh", "sh", "-c", "echo 3", nullptr); }
