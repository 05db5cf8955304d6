// tries: sleep a little, again and again
// expect: time_limit
// limits: cpu_s=0.1

#include <unistd.h>

int main() {
    for (;;) usleep(3000);
}
