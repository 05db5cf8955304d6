// tries: fork without end
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() {
    for (;;) fork();
}
