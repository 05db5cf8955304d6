// tries: inline a thousand million statements into one function
// expect: compile_error
// limits: compile_s=1

#define INLINE [[gnu::always_inline]] inline void

volatile int cell;

INLINE f0() { cell = cell + 1; }
INLINE f1() { f0(), f0(), f0(), f0(), f0(), f0(), f0(), f0(); }
INLINE f2() { f1(), f1(), f1(), f1(), f1(), f1(), f1(), f1(); }
INLINE f3() { f2(), f2(), f2(), f2(), f2(), f2(), f2(), f2(); }
INLINE f4() { f3(), f3(), f3(), f3(), f3(), f3(), f3(), f3(); }
INLINE f5() { f4(), f4(), f4(), f4(), f4(), f4(), f4(), f4(); }
INLINE f6() { f5(), f5(), f5(), f5(), f5(), f5(), f5(), f5(); }
INLINE f7() { f6(), f6(), f6(), f6(), f6(), f6(), f6(), f6(); }
INLINE f8() { f7(), f7(), f7(), f7(), f7(), f7(), f7(), f7(); }
INLINE f9() { f8(), f8(), f8(), f8(), f8(), f8(), f8(), f8(); }
INLINE f10() { f9(), f9(), f9(), f9(), f9(), f9(), f9(), f9(); }

int main() { f10(); }
