// One binary, many behaviours: the first number of the input says which.
#include <bits/stdc++.h>
#include <unistd.h>

struct Ends {
    ~Ends() { std::puts("static object destroyed"); }
} ends;

static int deep(int n) {
    volatile char block[200];
    block[n % 200] = static_cast<char>(n);
    return n == 0 ? block[0] : 1 + deep(n - 1);
}

int main(int argc, char** argv, char** environment) {
    int which = -1;
    std::cin >> which;
    switch (which) {
        case 0: return 0;
        case 1: return 1;
        case 2: return 255;
        case 3: return 256 + 3;
        case 4: return -1;
        case 5: std::exit(7);
        case 6: std::puts("lost by _Exit"); std::_Exit(8);
        case 7: std::puts("kept by quick_exit"); std::fflush(stdout); std::quick_exit(9);
        case 8: std::abort();
        case 9: *static_cast<volatile int*>(nullptr) = 1; break;
        case 10: throw std::runtime_error("uncaught");
        case 11: std::raise(SIGTERM); break;
        case 12: std::raise(SIGFPE); break;
        case 13: std::raise(SIGUSR1); break;
        case 14: assert(which == 0); break;
        case 15: std::terminate();
        case 16: { std::vector<int> v(3); std::cout << v.at(5); break; }
        case 17: std::cout << argc << ' ' << (argc > 1 ? argv[1] : "no argument") << '\n'; break;
        case 18: { std::string line; int lines = 0; while (std::getline(std::cin, line)) std::cout << lines++ << ':' << line << '\n'; break; }
        case 19: { long long sum = 0, x; while (std::cin >> x) sum += x; std::cout << sum << ' ' << std::cin.eof() << std::cin.fail() << '\n'; break; }
        case 20: { int x = -1; std::cout << std::scanf("%d", &x) << ' ' << x << '\n'; break; }
        case 21: { std::ios::sync_with_stdio(false); std::cin.tie(nullptr); for (int i = 0; i < 100000; i++) std::cout << i << '\n'; break; }
        case 22: std::cout << std::fixed << std::setprecision(9) << 1.0 / 3 << ' ' << 1e300 * 10 << ' ' << std::sqrt(-1.0) << '\n'; break;
        case 23: std::cerr << "to standard error\n"; std::clog << "log\n"; break;
        case 24: std::atexit([] { std::puts("at exit"); }); std::puts("main"); break;
        case 25: { std::thread t([] { std::puts("thread"); }); t.join(); break; }
        case 26: std::cout << deep(20000) << '\n'; break;
        case 27: std::cout << std::setlocale(LC_ALL, nullptr) << ' ' << std::locale().name() << '\n'; break;
        case 28: { std::mt19937 r; std::cout << r() << ' ' << r() << '\n'; break; }
        case 29: std::cout << std::hash<std::string>{}("x") << ' ' << sizeof(long) << '\n'; break;
        case 30: { std::unordered_map<int, int> m; for (int i = 0; i < 50; i++) m[i * 7919 % 101] = i; for (auto& [k, v] : m) std::cout << k << ' '; break; }
        case 31: { char b[4]; std::cout << ::read(0, b, 4) << ' ' << ::lseek(0, 0, SEEK_CUR) << '\n'; break; }
        case 32: std::cout << ::isatty(0) << ::isatty(1) << ::isatty(2) << '\n'; break;
        case 33: std::fputs("no newline", stdout); break;
        case 34: std::cout << "buffered\n"; ::write(1, "direct\n", 7); break;
        case 35: std::fclose(stdout); return 5;
        case 36: { auto old = std::signal(SIGINT, SIG_IGN); std::cout << (old == SIG_DFL); std::cout << (std::signal(SIGPIPE, SIG_DFL) == SIG_DFL) << '\n'; break; }
        case 37: { std::string s; std::cin >> std::ws; std::getline(std::cin, s, '\0'); std::cout << s.size() << ' ' << std::count(s.begin(), s.end(), '\r') << '\n'; break; }
        case 38: try { throw 42; } catch (int x) { std::cout << "caught " << x << '\n'; } break;
        case 39: std::cout << std::getenv("LANG") << '\n'; (void)environment; break;
        case 40: std::cout << __cplusplus << ' ' << std::thread::hardware_concurrency() % 1 << '\n'; break;
        case 41: { auto p = std::make_unique<int[]>(50'000'000); std::cout << p[49'999'999] << '\n'; break; }
        case 42: { std::stringstream s("1 x"); int a = 0, b = 7; s >> a >> b; std::cout << a << ' ' << b << '\n'; break; }
        case 43: { std::cout << std::regex_replace("aXb", std::regex("X"), "-") << '\n'; break; }
        default: std::cout << "nothing\n";
    }
    return 0;
}
