/* The hash chain of a trace, h <- sha256(h || record) for many records, with the processor's SHA instructions.
 *
 * A record is short (two blocks of SHA-256), so a general library spends most of its time around the hash.
 * `trace.py` beside this file says what is computed, and does the same with hashlib, more slowly. SHA-256: FIPS 180-4.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define DIGEST 32 /* bytes */
#define BLOCK 64
#define LENGTH 8 /* of the message, at the end of its last block */
#define VECTOR __attribute__((target("sha,sse4.1")))

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The instructions keep the eight words a..h of the state in two vectors, (f, e, b, a) and (h, g, d, c). */
typedef struct {
    __m128i feba, hgdc;
} words;

VECTOR static words initial(void) {
    words s = {_mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c),
               _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19)};
    return s;
}

/* Bytes to big-endian words, and back. */
VECTOR static __m128i turned(__m128i bytes) {
    return _mm_shuffle_epi8(bytes, _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
}

VECTOR static words compressed(words s, const uint8_t *block) {
    const words before = s;
    __m128i w[4]; /* the last 16 words of the message schedule */
    for (int i = 0; i < 4; i++) w[i] = turned(_mm_loadu_si128((const __m128i *)(block + 16 * i)));
    for (int i = 0; i < 16; i++) { /* four rounds each */
        __m128i wk = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
        s.hgdc = _mm_sha256rnds2_epu32(s.hgdc, s.feba, wk);
        s.feba = _mm_sha256rnds2_epu32(s.feba, s.hgdc, _mm_shuffle_epi32(wk, 0x0e));
        __m128i seven_ago = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
        __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), seven_ago);
        w[i & 3] = _mm_sha256msg2_epu32(sum, w[(i + 3) & 3]);
    }
    s.feba = _mm_add_epi32(s.feba, before.feba);
    s.hgdc = _mm_add_epi32(s.hgdc, before.hgdc);
    return s;
}

VECTOR static void write_digest(words s, uint8_t *digest) {
    __m128i abef = _mm_shuffle_epi32(s.feba, 0x1b), cdgh = _mm_shuffle_epi32(s.hgdc, 0x1b);
    _mm_storeu_si128((__m128i *)digest, turned(_mm_unpacklo_epi64(abef, cdgh)));
    _mm_storeu_si128((__m128i *)(digest + 16), turned(_mm_unpackhi_epi64(abef, cdgh)));
}

/* digest = sha256(digest || record) */
VECTOR static void append(uint8_t *digest, const uint8_t *record, size_t size) {
    uint8_t block[BLOCK] = {0};
    const uint64_t bits = 8 * (DIGEST + (uint64_t)size);
    size_t filled = size < BLOCK - DIGEST ? size : BLOCK - DIGEST;
    words s = initial();
    memcpy(block, digest, DIGEST);
    memcpy(block + DIGEST, record, filled);
    record += filled, size -= filled, filled += DIGEST;
    if (filled == BLOCK) {
        s = compressed(s, block);
        for (; size >= BLOCK; record += BLOCK, size -= BLOCK) s = compressed(s, record);
        memset(block, 0, BLOCK);
        memcpy(block, record, size);
        filled = size;
    }
    block[filled] = 0x80;
    if (filled >= BLOCK - LENGTH) {
        s = compressed(s, block);
        memset(block, 0, BLOCK);
    }
    for (int i = 0; i < LENGTH; i++) block[BLOCK - 1 - i] = (uint8_t)(bits >> 8 * i);
    write_digest(compressed(s, block), digest);
}

/* The module */

static PyObject *py_supported(PyObject *self, PyObject *none) {
    unsigned a, b, c, d;
    (void)self, (void)none;
    __builtin_cpu_init();
    return PyBool_FromLong(__builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1);
}

static PyObject *py_chained(PyObject *self, PyObject *args) {
    (void)self;
    const char *before;
    Py_ssize_t size;
    PyObject *records;
    uint8_t digest[DIGEST];
    if (!PyArg_ParseTuple(args, "y#O", &before, &size, &records)) return NULL;
    if (size != DIGEST || !PyList_Check(records)) {
        PyErr_SetString(PyExc_ValueError, "the chain needs a digest of 32 bytes and a list of records");
        return NULL;
    }
    memcpy(digest, before, DIGEST);
    for (Py_ssize_t i = 0; i < PyList_Size(records); i++) {
        char *record;
        if (PyBytes_AsStringAndSize(PyList_GetItem(records, i), &record, &size) < 0) return NULL;
        append(digest, (const uint8_t *)record, (size_t)size);
    }
    return PyBytes_FromStringAndSize((const char *)digest, DIGEST);
}

static PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, "Whether this processor has SHA instructions. Ask before any other call."},
    {"chained", py_chained, METH_VARARGS, "The digest after a digest and a list of records."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_trace", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__trace(void) { return PyModule_Create(&module); }
