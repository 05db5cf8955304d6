// tries: a macro that doubles thirty-six times
// expect: compile_error
// limits: compile_s=1

#define A x + x + x + x + x + x + x + x
#define B A + A + A + A + A + A + A + A
#define C B + B + B + B + B + B + B + B
#define D C + C + C + C + C + C + C + C
#define E D + D + D + D + D + D + D + D
#define F E + E + E + E + E + E + E + E
#define G F + F + F + F + F + F + F + F
#define H G + G + G + G + G + G + G + G
#define I H + H + H + H + H + H + H + H
#define J I + I + I + I + I + I + I + I
#define K J + J + J + J + J + J + J + J
#define L K + K + K + K + K + K + K + K

int main() {
    int x = 1;
    return L;
}
