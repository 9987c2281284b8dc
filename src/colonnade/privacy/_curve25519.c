/* Curve25519 for eight points at a time, with AVX-512 IFMA: X25519 (RFC 7748) and Elligator 2 (RFC 9380, section 6.7.1).
 *
 *   number    five vectors of limbs; limb i of all eight numbers has the weight 2^(51 i)
 *   loose     every limb is below 2^51 + 2^15: what `carried` returns. The multiplier reads 52 bits of a limb, so all
 *             functions take loose numbers and return loose ones, for every input
 *   p         2^255 - 19
 *
 * No branch and no address depends on the exponent or on a point. An exponent is the same for all points of a call.
 * The Python modules beside this file say what is computed, and do the same without it, more slowly.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define GROUPS 32 /* of eight points, which share one inversion */
#define POINT 32  /* bytes */
#define HASH 48
#define VECTOR __attribute__((target("avx512f,avx512ifma")))
#define INLINE VECTOR static inline __attribute__((always_inline))

typedef __m512i lane;
typedef struct {
    lane l[5];
} number;

static const uint64_t MASK = (1ULL << 51) - 1;
static const uint64_t A = 486662;   /* of the curve v^2 = u^3 + A u^2 + u */
static const uint64_t A24 = 121665; /* (A - 2) / 4 */

/* Arithmetic modulo p */

INLINE lane all(uint64_t x) { return _mm512_set1_epi64((long long)x); }

INLINE number small(uint64_t x) {
    number r = {{all(x), all(0), all(0), all(0), all(0)}};
    return r;
}

/* Make a number with limbs below 2^61 loose. A carry is below 2^10, and 19 times it below 2^15. */
INLINE number carried(number a) {
    const lane mask = all(MASK);
    number r;
    r.l[0] = _mm512_madd52lo_epu64(_mm512_and_si512(a.l[0], mask), _mm512_srli_epi64(a.l[4], 51), all(19));
    for (int i = 1; i < 5; i++)
        r.l[i] = _mm512_add_epi64(_mm512_and_si512(a.l[i], mask), _mm512_srli_epi64(a.l[i - 1], 51));
    return r;
}

INLINE number plus(number a, number b) {
    for (int i = 0; i < 5; i++) a.l[i] = _mm512_add_epi64(a.l[i], b.l[i]);
    return carried(a);
}

/* a - b + 2p: no limb of 2p is below a loose one. */
INLINE number minus(number a, number b) {
    for (int i = 0; i < 5; i++) {
        const lane twice = all(i ? 2 * MASK : 2 * MASK - 36);
        a.l[i] = _mm512_sub_epi64(_mm512_add_epi64(a.l[i], twice), b.l[i]);
    }
    return carried(a);
}

/* The number low + 2^52 high, each with nine limbs: limbs from the sixth on are multiplied by 2^255 = 19.
 * A limb of `low` or `high` is below 5 * 2^52, so 15 * 2^52 * 20 < 2^61 bounds a limb of the result. */
INLINE number reduced(const lane low[9], const lane high[9]) {
    number r;
    for (int i = 0; i < 5; i++) {
        lane over = _mm512_slli_epi64(high[i + 4], 1);
        if (i < 4) over = _mm512_add_epi64(over, low[i + 5]);
        lane sum = _mm512_add_epi64(low[i], over);
        sum = _mm512_add_epi64(sum, _mm512_slli_epi64(over, 1));
        sum = _mm512_add_epi64(sum, _mm512_slli_epi64(over, 4));
        if (i) sum = _mm512_add_epi64(sum, _mm512_slli_epi64(high[i - 1], 1));
        r.l[i] = sum;
    }
    return carried(r);
}

INLINE number times(number a, number b) {
    lane low[9], high[9];
    for (int k = 0; k < 9; k++) low[k] = high[k] = all(0);
#pragma GCC unroll 5
    for (int i = 0; i < 5; i++)
#pragma GCC unroll 5
        for (int j = 0; j < 5; j++) {
            low[i + j] = _mm512_madd52lo_epu64(low[i + j], a.l[i], b.l[j]);
            high[i + j] = _mm512_madd52hi_epu64(high[i + j], a.l[i], b.l[j]);
        }
    return reduced(low, high);
}

/* The products of two different limbs are counted twice. */
INLINE number square(number a) {
    lane low[9], high[9];
    for (int k = 0; k < 9; k++) low[k] = high[k] = all(0);
#pragma GCC unroll 5
    for (int i = 0; i < 5; i++)
#pragma GCC unroll 5
        for (int j = i + 1; j < 5; j++) {
            low[i + j] = _mm512_madd52lo_epu64(low[i + j], a.l[i], a.l[j]);
            high[i + j] = _mm512_madd52hi_epu64(high[i + j], a.l[i], a.l[j]);
        }
#pragma GCC unroll 9
    for (int k = 0; k < 9; k++) {
        low[k] = _mm512_add_epi64(low[k], low[k]);
        high[k] = _mm512_add_epi64(high[k], high[k]);
        if (k % 2 == 0) {
            low[k] = _mm512_madd52lo_epu64(low[k], a.l[k / 2], a.l[k / 2]);
            high[k] = _mm512_madd52hi_epu64(high[k], a.l[k / 2], a.l[k / 2]);
        }
    }
    return reduced(low, high);
}

/* a + factor * b, for a factor below 2^20 */
INLINE number plus_times(number a, uint64_t factor, number b) {
    number r;
    for (int i = 0; i < 5; i++) {
        r.l[i] = _mm512_madd52lo_epu64(a.l[i], b.l[i], all(factor));
        lane over = _mm512_madd52hi_epu64(all(0), b.l[(i + 4) % 5], all(factor)); /* times 2^52, or 38 */
        r.l[i] = _mm512_madd52lo_epu64(r.l[i], over, all(i ? 2 : 38));
    }
    return carried(r);
}

VECTOR static number squares(number a, int count) {
    while (count--) a = square(a);
    return a;
}

/* a^(2^252 - 3), from which inverses and quadratic residues follow */
VECTOR static number power(number a) {
    number two = square(a);                               /* 2 */
    number nine = times(squares(two, 2), a);              /* 9 */
    number eleven = times(nine, two);                     /* 11 */
    number x5 = times(square(eleven), nine);              /* 2^5 - 1 */
    number x10 = times(squares(x5, 5), x5);               /* 2^10 - 1, and so on */
    number x20 = times(squares(x10, 10), x10);
    number x40 = times(squares(x20, 20), x20);
    number x50 = times(squares(x40, 10), x10);
    number x100 = times(squares(x50, 50), x50);
    number x200 = times(squares(x100, 100), x100);
    number x250 = times(squares(x200, 50), x50);
    return times(squares(x250, 2), a);
}

/* 1/a = a^(p - 2), and p - 2 = 8 (2^252 - 3) + 3; of 0 it is 0 */
VECTOR static number inverse(number a) { return times(squares(power(a), 3), times(square(a), a)); }

/* a^((p - 1) / 2), and (p - 1) / 2 = 4 (2^252 - 3) + 2: 1 for squares, p - 1 for others, 0 for 0 */
VECTOR static number residue(number a) { return times(squares(power(a), 2), square(a)); }

/* Eight numbers to and from bytes in little-endian order */

INLINE number of_words(const uint64_t words[4][LANES]) {
    const lane mask = all(MASK);
    lane w[4];
    for (int i = 0; i < 4; i++) w[i] = _mm512_loadu_si512(words[i]);
    number r;
    r.l[0] = _mm512_and_si512(w[0], mask);
    r.l[1] = _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64(w[0], 51), _mm512_slli_epi64(w[1], 13)), mask);
    r.l[2] = _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64(w[1], 38), _mm512_slli_epi64(w[2], 26)), mask);
    r.l[3] = _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64(w[2], 25), _mm512_slli_epi64(w[3], 39)), mask);
    r.l[4] = _mm512_srli_epi64(w[3], 12); /* 52 bits */
    return r;
}

/* The canonical words of each number: below p */
VECTOR static void to_words(number a, uint64_t words[4][LANES]) {
    uint64_t limbs[5][LANES];
    a = carried(carried(a)); /* limbs of at most 2^51 */
    for (int i = 0; i < 5; i++) _mm512_storeu_si512(limbs[i], a.l[i]);
    for (int n = 0; n < LANES; n++) {
        uint64_t l[5], carry = 19; /* carry out of a + 19: whether a is p or above */
        for (int i = 0; i < 5; i++) {
            l[i] = limbs[i][n];
            carry = (l[i] + carry) >> 51;
        }
        l[0] += 19 * carry;
        for (int i = 0; i < 4; i++) {
            l[i + 1] += l[i] >> 51;
            l[i] &= MASK;
        }
        l[4] &= MASK;
        words[0][n] = l[0] | l[1] << 51;
        words[1][n] = l[1] >> 13 | l[2] << 38;
        words[2][n] = l[2] >> 26 | l[3] << 25;
        words[3][n] = l[3] >> 39 | l[4] << 12;
    }
}

/* The first of n <= 8 points; the other lanes repeat the first point, and their results are not used. */
VECTOR static number of_points(const uint8_t *points, int n) {
    uint64_t words[4][LANES];
    for (int lane_ = 0; lane_ < LANES; lane_++)
        for (int i = 0; i < 4; i++) memcpy(&words[i][lane_], points + POINT * (lane_ < n ? lane_ : 0) + 8 * i, 8);
    return of_words((const uint64_t(*)[LANES])words);
}

/* Writes n points; returns whether one of them is 0. */
VECTOR static int to_points(number a, uint8_t *points, int n) {
    uint64_t words[4][LANES];
    int zero = 0;
    to_words(a, words);
    for (int lane_ = 0; lane_ < n; lane_++) {
        for (int i = 0; i < 4; i++) memcpy(points + POINT * lane_ + 8 * i, &words[i][lane_], 8);
        zero |= (words[0][lane_] | words[1][lane_] | words[2][lane_] | words[3][lane_]) == 0;
    }
    return zero;
}

/* Which numbers are equal to x, which is 0 or 1 */
VECTOR static __mmask8 equal(number a, uint64_t x) {
    uint64_t words[4][LANES];
    to_words(a, words);
    unsigned found = 0;
    for (int n = 0; n < LANES; n++)
        found |= (unsigned)(((words[0][n] ^ x) | words[1][n] | words[2][n] | words[3][n]) == 0) << n;
    return (__mmask8)found;
}

INLINE number chosen(__mmask8 first, number a, number b) {
    for (int i = 0; i < 5; i++) a.l[i] = _mm512_mask_blend_epi64(first, b.l[i], a.l[i]);
    return a;
}

/* Replaces each number, none of which is 0, by its inverse: Montgomery's trick, one inversion for all groups. */
VECTOR static void invert(number *numbers, int groups) {
    number before[GROUPS], product = numbers[0];
    for (int g = 1; g < groups; g++) {
        before[g] = product;
        product = times(product, numbers[g]);
    }
    number rest = inverse(product);
    for (int g = groups - 1; g > 0; g--) {
        number one = times(rest, before[g]);
        rest = times(rest, numbers[g]);
        numbers[g] = one;
    }
    numbers[0] = rest;
}

/* The number of points in a group, of those that are left */
static int filled(Py_ssize_t left) { return left < LANES ? (int)left : LANES; }

/* The number of groups that share the next inversion */
static int groups_of(Py_ssize_t left) {
    return left < GROUPS * LANES ? (int)(left + LANES - 1) / LANES : GROUPS;
}

/* X25519: RFC 7748, section 5. k u = x / z; z is 0 if the result is the point at infinity. */
VECTOR static void ladder(const uint8_t k[POINT], number u, number *x, number *z) {
    number x2 = small(1), z2 = small(0), x3 = u, z3 = small(1);
    unsigned swapped = 0;
    for (int t = 254; t >= 0; t--) {
        unsigned bit = k[t / 8] >> (t % 8) & 1;
        __mmask8 swap = (__mmask8)(0 - (swapped ^ bit));
        swapped = bit;
        number x2_ = chosen(swap, x3, x2), z2_ = chosen(swap, z3, z2);
        x3 = chosen(swap, x2, x3), z3 = chosen(swap, z2, z3);
        number a = plus(x2_, z2_), b = minus(x2_, z2_);
        number c = plus(x3, z3), d = minus(x3, z3);
        number aa = square(a), bb = square(b), e = minus(aa, bb);
        number da = times(d, a), cb = times(c, b);
        x3 = square(plus(da, cb));
        z3 = times(u, square(minus(da, cb)));
        x2 = times(aa, bb);
        z2 = times(e, plus_times(aa, A24, e));
    }
    __mmask8 swap = (__mmask8)(0 - swapped);
    *x = chosen(swap, x3, x2);
    *z = chosen(swap, z3, z2);
}

/* Returns whether a result is 0: the order of its point is small. */
VECTOR static int raise_all(const uint8_t k[POINT], const uint8_t *points, uint8_t *found, Py_ssize_t count) {
    int zero = 0;
    number x[GROUPS], z[GROUPS];
    for (Py_ssize_t start = 0; start < count; start += GROUPS * LANES) {
        int groups = groups_of(count - start);
        for (int g = 0; g < groups; g++) {
            Py_ssize_t first = start + g * LANES;
            int n = filled(count - first);
            ladder(k, of_points(points + POINT * first, n), &x[g], &z[g]);
            __mmask8 infinite = equal(z[g], 0);
            x[g] = chosen(infinite, small(0), x[g]);
            z[g] = chosen(infinite, small(1), z[g]);
        }
        invert(z, groups);
        for (int g = 0; g < groups; g++) {
            Py_ssize_t first = start + g * LANES;
            int n = filled(count - first);
            zero |= to_points(times(x[g], z[g]), found + POINT * first, n);
        }
    }
    return zero;
}

/* A number of 48 bytes in big-endian order modulo p: 2^256 = 38. */
VECTOR static number of_hashes(const uint8_t *hashes, int n) {
    uint64_t low[4][LANES], high[4][LANES] = {{0}};
    for (int lane_ = 0; lane_ < LANES; lane_++) {
        const uint8_t *hash = hashes + HASH * (lane_ < n ? lane_ : 0);
        for (int i = 0; i < 6; i++) {
            uint64_t word = 0;
            for (int byte = 0; byte < 8; byte++) word = word << 8 | hash[HASH - 8 * (i + 1) + byte];
            *(i < 4 ? &low[i][lane_] : &high[i - 4][lane_]) = word;
        }
    }
    return plus_times(of_words((const uint64_t(*)[LANES])low), 38, of_words((const uint64_t(*)[LANES])high));
}

/* Elligator 2: d = 1 + 2 r^2, x1 = -A / d, x2 = -A - x1; exactly one of them is on the curve. */
VECTOR static void map_all(const uint8_t *hashes, uint8_t *found, Py_ssize_t count) {
    const number minus_a = minus(small(0), small(A));
    number d[GROUPS];
    for (Py_ssize_t start = 0; start < count; start += GROUPS * LANES) {
        int groups = groups_of(count - start);
        for (int g = 0; g < groups; g++) {
            Py_ssize_t first = start + g * LANES;
            int n = filled(count - first);
            number rr = square(of_hashes(hashes + HASH * first, n));
            d[g] = plus_times(small(1), 2, rr);
        }
        invert(d, groups);
        for (int g = 0; g < groups; g++) {
            Py_ssize_t first = start + g * LANES;
            int n = filled(count - first);
            number x1 = times(minus_a, d[g]);
            number right = times(x1, plus_times(plus(square(x1), small(1)), A, x1));
            number u = chosen(equal(residue(right), 1), x1, minus(minus_a, x1));
            to_points(u, found + POINT * first, n);
        }
    }
}

/* The module */

static PyObject *py_supported(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    __builtin_cpu_init();
    return PyBool_FromLong(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma"));
}

static PyObject *py_raise_points(PyObject *self, PyObject *args) {
    (void)self;
    const char *exponent, *points;
    Py_ssize_t exponent_size, size;
    if (!PyArg_ParseTuple(args, "y#y#", &exponent, &exponent_size, &points, &size)) return NULL;
    if (exponent_size != POINT || size % POINT) {
        PyErr_SetString(PyExc_ValueError, "an exponent and points have 32 bytes each");
        return NULL;
    }
    PyObject *found = PyBytes_FromStringAndSize(NULL, size);
    if (found == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(found), k[POINT];
    int zero;
    memcpy(k, exponent, POINT);
    k[0] &= 248;
    k[31] = (uint8_t)((k[31] & 127) | 64);
    Py_BEGIN_ALLOW_THREADS;
    zero = raise_all(k, (const uint8_t *)points, out, size / POINT);
    Py_END_ALLOW_THREADS;
    if (zero) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_ValueError, "a point has a small order");
        return NULL;
    }
    return found;
}

static PyObject *py_map_to_curve(PyObject *self, PyObject *args) {
    (void)self;
    const char *hashes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &hashes, &size)) return NULL;
    if (size % HASH) {
        PyErr_SetString(PyExc_ValueError, "hashes have 48 bytes each");
        return NULL;
    }
    PyObject *found = PyBytes_FromStringAndSize(NULL, size / HASH * POINT);
    if (found == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(found);
    Py_BEGIN_ALLOW_THREADS;
    map_all((const uint8_t *)hashes, out, size / HASH);
    Py_END_ALLOW_THREADS;
    return found;
}

static PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, "Whether this processor has AVX-512 IFMA. Ask before any other call."},
    {"raise_points", py_raise_points, METH_VARARGS, "k P of each u-coordinate; ValueError if one of them is 0."},
    {"map_to_curve", py_map_to_curve, METH_VARARGS, "The u-coordinate of each hash of 48 bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_curve25519", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__curve25519(void) { return PyModule_Create(&module); }
