// Decode on a CPU between the matrix products. Sums are in single precision, whatever the type of the numbers. Nothing
// here depends on torch: the caller passes addresses, and strides counted in numbers.
//
// Decode attention (`attend`): stores the keys and values of the new tokens in their pages of the KV cache; then each
// attends to all tokens of its sequence up to itself, page by page. Query heads that share a key head are computed
// together, a few tokens at a time, so that little is read twice. Scores are in units of log2: powers of two are the
// cheapest.
//
// `add_rms_norm`, `rotary` and `silu_mul` pass over each row once, where torch passes over all rows several times.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Half {  // bfloat16: the upper half of a float
    uint16_t bits;
};

struct CacheLayout {  // as `_CacheLayout` in cpu_ops.py
    int64_t rows, heads, group, size;  // key heads, query heads per key head, head size
    int64_t page, head;                // strides in the cache
    int64_t tokens, table_row;         // tokens of a page, stride of the page table
    int64_t q_row, k_row, v_row;
    int64_t window;            // positions attended to, 0 for all
    float scale, cap;          // in units of log2; cap 0: scores are not capped
};

inline float wide(float x) { return x; }

inline float wide(Half x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline void narrow(float x, float& result) { result = x; }

inline void narrow(float x, Half& result) {  // rounds to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    result.bits = x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : uint16_t(0x7fc0);
}

// 2^x for x <= 0: a polynomial for the fraction, the exponent bits for the integer part.
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

// Where the page of a token ends, or the sequence.
inline int64_t page_end(int64_t token, int64_t tokens, int64_t end) {
    const int64_t next = (token / tokens + 1) * tokens;
    return next < end ? next : end;
}

// Softmax: scores become weights that sum to one.
inline void soften(float* scores, int64_t count) {
    float most = scores[0], total = 0;
    for (int64_t t = 1; t < count; ++t) most = scores[t] > most ? scores[t] : most;
    for (int64_t t = 0; t < count; ++t) {
        scores[t] = power(scores[t] - most);
        total += scores[t];
    }
    for (int64_t t = 0; t < count; ++t) scores[t] /= total;
}

template <class Number, int SIZE>  // SIZE: head size, 0 if not known at compile time
void attend(const CacheLayout& at, const Number* q, const Number* k, const Number* v, Number* keys, Number* values,
          const int32_t* table, const int64_t* length, Number* seen) {
    const int64_t size = SIZE ? SIZE : at.size, group = at.group;
#pragma omp parallel
    {
        std::vector<float> query(group * size), sums(group * size), weights;
        // All are stored before any attends: several rows may be tokens of one sequence.
#pragma omp for schedule(static)
        for (int64_t row = 0; row < at.rows; ++row) {
            const int64_t token = length[row] - 1;
            const int64_t place = table[row * at.table_row + token / at.tokens] * at.page + token % at.tokens * size;
            for (int64_t head = 0; head < at.heads; ++head) {
                std::memcpy(keys + place + head * at.head, k + row * at.k_row + head * size, size * sizeof(Number));
                std::memcpy(values + place + head * at.head, v + row * at.v_row + head * size, size * sizeof(Number));
            }
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < at.rows * at.heads; ++task) {
            const int64_t row = task / at.heads, head = task % at.heads, end = length[row];
            const int64_t first = at.window && end > at.window ? end - at.window : 0;
            const int64_t count = end - first;
            const int32_t* pages = table + row * at.table_row;
            const auto place = [&](int64_t token) {
                return pages[token / at.tokens] * at.page + head * at.head + token % at.tokens * size;
            };
            const Number* own_q = q + row * at.q_row + head * group * size;
            for (int64_t i = 0; i < group * size; ++i) query[i] = wide(own_q[i]) * at.scale;
            sums.assign(group * size, 0);
            weights.resize(group * count);

            for (int64_t start = first, stop; start < end; start = stop) {
                stop = page_end(start, at.tokens, end);
                const Number* own_keys = keys + place(start);
                float* scores = &weights[start - first];
                int64_t t = 0;
                for (; t + 4 <= stop - start; t += 4)
                    for (int64_t g = 0; g < group; ++g)
                        score<4>(&query[g * size], own_keys + t * size, size, scores + g * count + t);
                for (; t < stop - start; ++t)
                    for (int64_t g = 0; g < group; ++g)
                        score<1>(&query[g * size], own_keys + t * size, size, scores + g * count + t);
            }
            if (at.cap)
                for (float& each : weights) each = at.cap * std::tanh(each / at.cap);
            for (int64_t g = 0; g < group; ++g) soften(&weights[g * count], count);
            for (int64_t start = first, stop; start < end; start = stop) {
                stop = page_end(start, at.tokens, end);
                const Number* own_values = values + place(start);
                const float* scores = &weights[start - first];
                int64_t t = 0;
                for (; t + 4 <= stop - start; t += 4)
                    for (int64_t g = 0; g < group; ++g)
                        mix<4>(scores + g * count + t, own_values + t * size, size, &sums[g * size]);
                for (; t < stop - start; ++t)
                    for (int64_t g = 0; g < group; ++g)
                        mix<1>(scores + g * count + t, own_values + t * size, size, &sums[g * size]);
            }

            Number* result = seen + (row * at.heads + head) * group * size;
            for (int64_t i = 0; i < group * size; ++i) narrow(sums[i], result[i]);
        }
    }
}

template <class Number>
void attend_sized(const CacheLayout& at, const void* q, const void* k, const void* v, void* keys, void* values,
             const int32_t* table, const int64_t* length, void* seen) {
    const auto chosen = at.size == 64 ? attend<Number, 64> : at.size == 128 ? attend<Number, 128> : attend<Number, 0>;
    chosen(at, (const Number*)q, (const Number*)k, (const Number*)v, (Number*)keys, (Number*)values, table,
           length, (Number*)seen);
}

const int64_t SMALL = 32768;  // below this, one thread finishes before others have woken up; torch uses the same limit

inline float scale_of(float total, int64_t size, float epsilon) { return 1.0f / std::sqrt(total / float(size) + epsilon); }

// x += y, if y is given; result = RMS norm of x, times offset + weight.
template <class Number>
void add_rms_norm(int64_t rows, int64_t size, float epsilon, float offset, Number* x, const Number* y,
                  const Number* weight, Number* result) {
#pragma omp parallel for schedule(static) if (rows * size > SMALL)
    for (int64_t row = 0; row < rows; ++row) {
        Number* own = x + row * size;
        if (y)
            for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) + wide(y[row * size + i]), own[i]);
        float total = 0;
        for (int64_t i = 0; i < size; ++i) total += wide(own[i]) * wide(own[i]);
        const float scale = scale_of(total, size, epsilon);
        for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) * scale * (offset + wide(weight[i])), result[row * size + i]);
    }
}

struct HeadLayout {  // as `_HeadLayout` in cpu_ops.py
    int64_t rows, queries, keys, size;  // query heads, key heads, head size
    int64_t rotated;                    // dimensions of a head that are rotated
    int64_t row;                        // stride
    float epsilon, offset;
};

// Normalises queries and keys, if norm weights are given, and applies the rotary embedding, in place.
template <class Number>
void rotary(const HeadLayout& at, Number* qkv, const Number* cosine, const Number* sine, const int64_t* position,
          const Number* q_norm, const Number* k_norm) {
    const int64_t size = at.size, half = at.rotated / 2;
#pragma omp parallel for schedule(static) if (at.rows * at.row > SMALL)
    for (int64_t row = 0; row < at.rows; ++row) {
        const int64_t place = half ? position[row] * at.rotated : 0;
        const Number *c = cosine + place, *s = sine + place;
        for (int64_t head = 0; head < at.queries + at.keys; ++head) {
            Number* own = qkv + row * at.row + head * size;
            if (const Number* weight = head < at.queries ? q_norm : k_norm) {
                float total = 0;
                for (int64_t i = 0; i < size; ++i) total += wide(own[i]) * wide(own[i]);
                const float scale = scale_of(total, size, at.epsilon);
                for (int64_t i = 0; i < size; ++i) narrow(wide(own[i]) * scale * (at.offset + wide(weight[i])), own[i]);
            }
            for (int64_t i = 0; i < half; ++i) {  // the sine of the first half is already negated
                const float first = wide(own[i]), second = wide(own[i + half]);
                narrow(first * wide(c[i]) + second * wide(s[i]), own[i]);
                narrow(second * wide(c[i + half]) + first * wide(s[i + half]), own[i + half]);
            }
        }
    }
}

// SwiGLU: up * silu(gate) = up * gate / (1 + e^-gate); each row is [gate, up].
template <class Number>
void silu_mul(int64_t rows, int64_t size, const Number* both, Number* result) {
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

extern "C" void dojang_add_rms_norm(int64_t rows, int64_t size, float epsilon, float offset, int half, void* x,
                            const void* y, const void* weight, void* result) {
    if (half)
        add_rms_norm(rows, size, epsilon, offset, (Half*)x, (const Half*)y, (const Half*)weight, (Half*)result);
    else
        add_rms_norm(rows, size, epsilon, offset, (float*)x, (const float*)y, (const float*)weight, (float*)result);
}

extern "C" void dojang_rotary(const HeadLayout* at, int half, void* qkv, const void* cosine, const void* sine,
                            const int64_t* position, const void* q_norm, const void* k_norm) {
    if (half)
        rotary(*at, (Half*)qkv, (const Half*)cosine, (const Half*)sine, position, (const Half*)q_norm,
             (const Half*)k_norm);
    else
        rotary(*at, (float*)qkv, (const float*)cosine, (const float*)sine, position, (const float*)q_norm,
             (const float*)k_norm);
}

extern "C" void dojang_silu_mul(int64_t rows, int64_t size, int half, const void* both, void* result) {
    if (half)
        silu_mul(rows, size, (const Half*)both, (Half*)result);
    else
        silu_mul(rows, size, (const float*)both, (float*)result);
}

extern "C" void dojang_attend(const CacheLayout* at, int half, const void* q, const void* k, const void* v, void* keys,
                            void* values, const int32_t* table, const int64_t* length, void* seen) {
    (half ? attend_sized<Half> : attend_sized<float>)(*at, q, k, v, keys, values, table, length, seen);
}
