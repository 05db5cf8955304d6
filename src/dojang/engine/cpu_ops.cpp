// What a processor does between the products of a decoding step. Sums are in single precision, whatever the numbers are
// in. Nothing of torch is wanted here: whoever calls gives addresses, and strides counted in numbers.
//
// Attention of the newest token in each slot (`look`): its key and value are stored with those of the slot's other
// tokens; then all of them are looked at, as many as there are. Heads of queries that share keys are taken together, and a
// few tokens at a time, so that little is read twice. Scores are in units of log2: powers of two are the cheapest.
//
// The rest (`norm`, `turn`, `gate`) goes over each row once, where torch would go over all rows several times.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Half {  // bfloat16: the upper half of a float
    uint16_t bits;
};

struct Slots {  // as `_Slots` in cpu_ops.py
    int64_t rows, heads, group, size;  // heads of keys, queries for each of them, numbers in a head
    int64_t slot, head;                // strides in the cache
    int64_t q_row, k_row, v_row;
    float scale;
};

inline float wide(float x) { return x; }

inline float wide(Half x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline void narrow(float x, float& result) { result = x; }

inline void narrow(float x, Half& result) {  // the nearest, and of two the even one
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    result.bits = x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : uint16_t(0x7fc0);
}

// 2^x for x <= 0: a polynomial for what is after the point, the exponent for the rest.
inline float power(float x) {
    x = x < -126.0f ? -126.0f : x;
    const int whole = int(x - 0.5f);
    const float part = x - float(whole);
    float sum = 1.535336188319500e-4f;
    sum = sum * part + 1.339887440266574e-3f;
    sum = sum * part + 9.618437357674640e-3f;
    sum = sum * part + 5.550332471162809e-2f;
    sum = sum * part + 2.402264791363012e-1f;
    sum = sum * part + 6.931472028550421e-1f;
    sum = sum * part + 1.0f;
    const uint32_t bits = uint32_t(whole + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return sum * scale;
}

template <int TOKENS, class Number>
inline void score(const float* __restrict query, const Number* __restrict keys, int64_t size, float* __restrict scores) {
    float sums[TOKENS] = {};
    for (int64_t i = 0; i < size; ++i)
        for (int t = 0; t < TOKENS; ++t) sums[t] += query[i] * wide(keys[t * size + i]);
    for (int t = 0; t < TOKENS; ++t) scores[t] = sums[t];
}

template <int TOKENS, class Number>
inline void mix(const float* __restrict weights, const Number* __restrict values, int64_t size, float* __restrict sums) {
    for (int64_t i = 0; i < size; ++i) {
        float sum = 0;
        for (int t = 0; t < TOKENS; ++t) sum += weights[t] * wide(values[t * size + i]);
        sums[i] += sum;
    }
}

// Scores become weights, which sum to one.
inline void soften(float* scores, int64_t count) {
    float most = scores[0], total = 0;
    for (int64_t t = 1; t < count; ++t) most = scores[t] > most ? scores[t] : most;
    for (int64_t t = 0; t < count; ++t) {
        scores[t] = power(scores[t] - most);
        total += scores[t];
    }
    for (int64_t t = 0; t < count; ++t) scores[t] /= total;
}

template <class Number, int SIZE>  // SIZE: numbers in a head, 0 if not known here
void look(const Slots& at, const Number* q, const Number* k, const Number* v, Number* keys, Number* values,
          const int64_t* length, Number* seen) {
    const int64_t size = SIZE ? SIZE : at.size, group = at.group;
#pragma omp parallel
    {
        std::vector<float> query(group * size), sums(group * size), weights;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < at.rows * at.heads; ++task) {
            const int64_t row = task / at.heads, head = task % at.heads, count = length[row], last = (count - 1) * size;
            Number* own_keys = keys + row * at.slot + head * at.head;
            Number* own_values = values + row * at.slot + head * at.head;
            std::memcpy(own_keys + last, k + row * at.k_row + head * size, size * sizeof(Number));
            std::memcpy(own_values + last, v + row * at.v_row + head * size, size * sizeof(Number));
            const Number* own_q = q + row * at.q_row + head * group * size;
            for (int64_t i = 0; i < group * size; ++i) query[i] = wide(own_q[i]) * at.scale;
            sums.assign(group * size, 0);
            weights.resize(group * count);

            int64_t t = 0;
            for (; t + 4 <= count; t += 4)
                for (int64_t g = 0; g < group; ++g)
                    score<4>(&query[g * size], own_keys + t * size, size, &weights[g * count + t]);
            for (; t < count; ++t)
                for (int64_t g = 0; g < group; ++g)
                    score<1>(&query[g * size], own_keys + t * size, size, &weights[g * count + t]);
            for (int64_t g = 0; g < group; ++g) soften(&weights[g * count], count);
            for (t = 0; t + 4 <= count; t += 4)
                for (int64_t g = 0; g < group; ++g)
                    mix<4>(&weights[g * count + t], own_values + t * size, size, &sums[g * size]);
            for (; t < count; ++t)
                for (int64_t g = 0; g < group; ++g)
                    mix<1>(&weights[g * count + t], own_values + t * size, size, &sums[g * size]);

            Number* result = seen + (row * at.heads + head) * group * size;
            for (int64_t i = 0; i < group * size; ++i) narrow(sums[i], result[i]);
        }
    }
}

template <class Number>
void look_at(const Slots& at, const void* q, const void* k, const void* v, void* keys, void* values,
             const int64_t* length, void* seen) {
    const auto chosen = at.size == 64 ? look<Number, 64> : at.size == 128 ? look<Number, 128> : look<Number, 0>;
    chosen(at, (const Number*)q, (const Number*)k, (const Number*)v, (Number*)keys, (Number*)values, length,
           (Number*)seen);
}

const int64_t SMALL = 32768;  // so many numbers are done before other threads have woken up; torch thinks so, too

inline float scale_of(float total, int64_t size, float epsilon) { return 1.0f / std::sqrt(total / float(size) + epsilon); }

// x becomes x + y, if there is a y, and the result is that, normalised.
template <class Number>
void norm(int64_t rows, int64_t size, float epsilon, Number* x, const Number* y, const Number* weight, Number* result) {
#pragma omp parallel for schedule(static) if (rows * size > SMALL)
    for (int64_t row = 0; row < rows; ++row) {
        Number* own = x + row * size;
        if (y)
            for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) + wide(y[row * size + i]), own[i]);
        float total = 0;
        for (int64_t i = 0; i < size; ++i) total += wide(own[i]) * wide(own[i]);
        const float scale = scale_of(total, size, epsilon);
        for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) * scale * wide(weight[i]), result[row * size + i]);
    }
}

struct Heads {  // as `_Heads` in cpu_ops.py
    int64_t rows, queries, keys, size;  // heads of queries and of keys, numbers in a head
    int64_t row;                        // stride
    float epsilon;
};

// Queries and keys are normalised, if there are weights for that, and turned by position, where they are.
template <class Number>
void turn(const Heads& at, Number* qkv, const Number* cosine, const Number* sine, const int64_t* position,
          const Number* q_norm, const Number* k_norm) {
    const int64_t size = at.size, half = size / 2;
#pragma omp parallel for schedule(static) if (at.rows * at.row > SMALL)
    for (int64_t row = 0; row < at.rows; ++row) {
        const Number *c = cosine + position[row] * size, *s = sine + position[row] * size;
        for (int64_t head = 0; head < at.queries + at.keys; ++head) {
            Number* own = qkv + row * at.row + head * size;
            if (const Number* weight = head < at.queries ? q_norm : k_norm) {
                float total = 0;
                for (int64_t i = 0; i < size; ++i) total += wide(own[i]) * wide(own[i]);
                const float scale = scale_of(total, size, at.epsilon);
                for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) * scale * wide(weight[i]), own[i]);
            }
            for (int64_t i = 0; i < half; ++i) {  // the sine of the first half has its minus already
                const float first = wide(own[i]), second = wide(own[i + half]);
                narrow(first * wide(c[i]) + second * wide(s[i]), own[i]);
                narrow(second * wide(c[i + half]) + first * wide(s[i + half]), own[i + half]);
            }
        }
    }
}

// The second half of each row, let through by the first: up * gate / (1 + e^-gate).
template <class Number>
void gate(int64_t rows, int64_t size, const Number* both, Number* result) {
#pragma omp parallel for schedule(static) if (rows * size > SMALL)
    for (int64_t row = 0; row < rows; ++row) {
        const Number *own = both + row * 2 * size, *up = own + size;
        for (int64_t i = 0; i < size; ++i) {
            const float x = wide(own[i]), small = power(-std::fabs(x) * 1.44269504f);
            narrow(x * ((x < 0 ? small : 1.0f) / (1.0f + small)) * wide(up[i]), result[row * size + i]);
        }
    }
}

}  // namespace

extern "C" void dojang_norm(int64_t rows, int64_t size, float epsilon, int half, void* x, const void* y,
                            const void* weight, void* result) {
    if (half)
        norm(rows, size, epsilon, (Half*)x, (const Half*)y, (const Half*)weight, (Half*)result);
    else
        norm(rows, size, epsilon, (float*)x, (const float*)y, (const float*)weight, (float*)result);
}

extern "C" void dojang_turn(const Heads* at, int half, void* qkv, const void* cosine, const void* sine,
                            const int64_t* position, const void* q_norm, const void* k_norm) {
    if (half)
        turn(*at, (Half*)qkv, (const Half*)cosine, (const Half*)sine, position, (const Half*)q_norm,
             (const Half*)k_norm);
    else
        turn(*at, (float*)qkv, (const float*)cosine, (const float*)sine, position, (const float*)q_norm,
             (const float*)k_norm);
}

extern "C" void dojang_gate(int64_t rows, int64_t size, int half, const void* both, void* result) {
    if (half)
        gate(rows, size, (const Half*)both, (Half*)result);
    else
        gate(rows, size, (const float*)both, (float*)result);
}

extern "C" void dojang_look(const Slots* at, int half, const void* q, const void* k, const void* v, void* keys,
                            void* values, const int64_t* length, void* seen) {
    (half ? look_at<Half> : look_at<float>)(*at, q, k, v, keys, values, length, seen);
}
