/* The bins of a timeline and of the speeds: what happened is added to them at once, where Python keeps a list for later.
 *
 * `timeline.py` and `speeds.py` beside this file say what is computed, and do the same with numpy, more slowly. All
 * arrays belong to them and hold int64: the bins (row: 2 role + state), and since, jobs and flying of every role.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { STARTED, ENDED, LEFT, ARRIVED }; /* the kinds of notes in timeline.py */
enum { BUSY, TRANSIT, WAITING };

typedef struct {
    PyObject_HEAD
    Py_buffer rows, tracks; /* kept, so that the arrays stay where they are */
    int64_t *at, *since, *jobs, *flying;
    int64_t roles, bins, width; /* width: nanoseconds of a bin */
} Bins;

/* Merge pairs of bins until they reach `end`, as `grown` of timeline.py. */
static void grow(Bins *self, int64_t end) {
    const int64_t pairs = self->bins / 2, odd = self->bins % 2;
    while (end > self->width * self->bins) {
        for (int64_t r = 0; r < 2 * self->roles; r++) {
            int64_t *row = self->at + r * self->bins;
            for (int64_t i = 0; i < pairs; i++) row[i] = row[2 * i] + row[2 * i + 1];
            if (odd) row[pairs] = row[2 * pairs];
            memset(row + pairs + odd, 0, (size_t)pairs * sizeof *row);
        }
        self->width *= 2;
    }
}

static void add_span(int64_t *row, int64_t width, int64_t start, int64_t end) {
    int64_t first = start / width, last = (end - 1) / width;
    if (first == last) {
        row[first] += end - start;
        return;
    }
    row[first] += (first + 1) * width - start;
    while (++first < last) row[first] += width;
    row[last] += end - last * width;
}

/* Read the arguments of a note: a role (times `scale`, plus a kind), a time, and more. */
static int read_note(Bins *self, PyObject *const *args, Py_ssize_t count, int64_t *note, int expected, int scale) {
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "a note has %d numbers, not %zd", expected, count);
        return 0;
    }
    for (int i = 0; i < expected; i++) {
        note[i] = PyLong_AsLongLong(args[i]);
        if (note[i] == -1 && PyErr_Occurred()) return 0;
    }
    if (note[0] < 0 || note[0] >= scale * self->roles || note[1] < 0 || note[1] > INT64_MAX / 4) {
        PyErr_SetString(PyExc_ValueError, "a note names no role, or no time");
        return 0;
    }
    return 1;
}

static PyObject *note(Bins *self, PyObject *const *args, Py_ssize_t count) {
    int64_t n[2]; /* 4 role + kind, time */
    if (!read_note(self, args, count, n, 2, 4)) return NULL;
    const int64_t role = n[0] >> 2, time = n[1];
    const int state = self->jobs[role] > 0 ? BUSY : self->flying[role] > 0 ? TRANSIT : WAITING;
    grow(self, time);
    if (state != WAITING && self->since[role] < time)
        add_span(self->at + (2 * role + state) * self->bins, self->width, self->since[role], time);
    self->since[role] = time;
    switch (n[0] & 3) {
        case STARTED: self->jobs[role]++; break;
        case ENDED: self->jobs[role]--; break;
        case LEFT: self->flying[role]++; break;
        case ARRIVED: self->flying[role]--; break;
    }
    Py_RETURN_NONE;
}

static PyObject *note_speed(Bins *self, PyObject *const *args, Py_ssize_t count) {
    int64_t n[4]; /* role, start, work, time */
    if (!read_note(self, args, count, n, 4, 1)) return NULL;
    grow(self, n[1] + 1);
    int64_t *bin = self->at + 2 * n[0] * self->bins + n[1] / self->width;
    bin[0] += n[2];
    bin[self->bins] += n[3];
    Py_RETURN_NONE;
}

static PyObject *width(Bins *self, PyObject *none) {
    (void)none;
    return PyLong_FromLongLong(self->width);
}

static PyObject *set_width(Bins *self, PyObject *number) {
    const long long given = PyLong_AsLongLong(number);
    if (given == -1 && PyErr_Occurred()) return NULL;
    if (given <= 0) return PyErr_Format(PyExc_ValueError, "a bin of %lld ns", given);
    self->width = given;
    Py_RETURN_NONE;
}

static PyObject *new_bins(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *rows, *tracks;
    long long first;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OOL", &rows, &tracks, &first)) return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Bins *self = (Bins *)make(type, 0); /* filled with zeros: a buffer without an object needs no release */
    if (self == NULL) return NULL;
    if (PyObject_GetBuffer(rows, &self->rows, PyBUF_CONTIG) < 0) goto failed;
    if (PyObject_GetBuffer(tracks, &self->tracks, PyBUF_CONTIG) < 0) goto failed;
    const Py_ssize_t size = sizeof(int64_t);
    self->roles = self->tracks.len / size / 3;
    self->bins = self->roles ? self->rows.len / size / (2 * self->roles) : 0;
    self->width = first;
    if (self->rows.itemsize != size || self->tracks.itemsize != size || self->bins < 2 || first <= 0 ||
        self->rows.len != 2 * self->roles * self->bins * size || self->tracks.len != 3 * self->roles * size) {
        PyErr_SetString(PyExc_ValueError, "bins need arrays of int64 that fit each other, and a width");
        goto failed;
    }
    self->at = self->rows.buf;
    self->since = self->tracks.buf;
    self->jobs = self->since + self->roles;
    self->flying = self->jobs + self->roles;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void dealloc(Bins *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyBuffer_Release(&self->rows);
    PyBuffer_Release(&self->tracks);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define METHOD(function) ((PyCFunction)(void (*)(void))function)

static PyMethodDef methods[] = {
    {"note", METHOD(note), METH_FASTCALL, "4 role + kind, time: what happened to a role."},
    {"note_speed", METHOD(note_speed), METH_FASTCALL, "Role, start, work and time of a job."},
    {"width", METHOD(width), METH_NOARGS, "Nanoseconds of a bin."},
    {"set_width", METHOD(set_width), METH_O, "The arrays were filled from a checkpoint with bins of this width."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_bins},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"colonnade.drivers.simulator._bins.Bins", sizeof(Bins), 0, Py_TPFLAGS_DEFAULT, slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bins", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bins(void) {
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (made == NULL || type == NULL || PyModule_AddObjectRef(made, "Bins", type) < 0) Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
