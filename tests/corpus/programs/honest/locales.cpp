// tries: set the locale, and write through wide streams
// expect: accepted

#include <clocale>
#include <iostream>
#include <locale>
#include <stdexcept>

int main() {
    std::setlocale(LC_ALL, "");
    std::setlocale(LC_ALL, "C");
    try {
        std::locale::global(std::locale(""));
    } catch (const std::runtime_error&) {
        std::locale::global(std::locale::classic());
    }
    long long a, b;
    std::wcin >> a >> b;
    std::wcout.imbue(std::locale::classic());
    std::wcout << a + b << std::endl;
}
