/* The native thread of the commit log: NativeSegmentWriter.

   `segment_writer.py` has the contract, docs/internals/segment-writer.md the rules. The two that
   matter here:

   - The thread never touches a Python object, so it never needs the interpreter's lock. It reads
     the addresses and lengths of buffers, and nothing else of them.
   - Only a thread that holds the interpreter's lock releases a buffer: in `submit`, `collect`,
     `wait`, `close`, or when the writer is freed.

   The mutex is held for a few instructions at a time and never during a write or a sync, so it may
   be taken with the interpreter's lock held. */

#define _GNU_SOURCE
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES_MAX 16         /* files that a round touches before it syncs them */
#define SIGNALS_NS 100000000 /* how often `wait` looks for a signal, in nanoseconds */

typedef struct Frame {
    struct Frame *next;
    long long sequence;
    int file;
    uint64_t position;
    long long size;
    Py_ssize_t count;
    Py_buffer pieces[];
} Frame;

typedef struct {
    const char *step; /* NULL: nothing failed */
    int number;       /* errno */
} Failure;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    int event;      /* eventfd; -1 once closed. Changes only with the interpreter's lock held. */
    bool is_set_up; /* mutex and conditions are there, and the thread runs unless it is joined */
    bool is_joined; /* likewise */
    unsigned forks; /* as it was when the thread began */
    long long frames_max, bytes_max;
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t work;   /* for the thread: a frame is queued, or the writer closes */
    pthread_cond_t news;   /* for `wait`: a round is published, or failed */
    Frame *queue;
    Frame **queue_end;
    Frame *done; /* the thread has finished with them; their buffers are still held */
    long long submitted, durable;
    long long frames, bytes; /* submitted and not yet durable */
    Failure failure;
    bool is_closing;
} Writer;

/* Counts how often this process is the child of a fork: its writers' threads stayed behind. */
static unsigned forks;

static void count_fork(void)
{
    forks++;
}

/* -- the thread: no Python from here ----------------------------------------------------------- */

/* Write all of it, however many calls that takes. Returns an errno, or 0. */
static int write_all(int file, struct iovec *vector, int count, uint64_t position)
{
    while (count > 0) {
        ssize_t written = pwritev(file, vector, count, (off_t)position);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (written == 0)
            return EIO;
        position += (uint64_t)written;
        while (count > 0 && (size_t)written >= vector->iov_len) {
            written -= (ssize_t)vector->iov_len;
            vector++;
            count--;
        }
        if (count > 0) {
            vector->iov_base = (char *)vector->iov_base + written;
            vector->iov_len -= (size_t)written;
        }
    }
    return 0;
}

static Failure sync_all(const int *files, int count)
{
    for (int i = 0; i < count; i++)
        if (fdatasync(files[i]) != 0)
            return (Failure){"sync", errno};
    return (Failure){NULL, 0};
}

/* A round: write the frames, then sync each file that they touch. Frames that follow each other in
   a file are one call. `*last` becomes the last frame. */
static Failure perform(Frame *round, Frame **last)
{
    struct iovec vector[IOV_MAX];
    int count = 0;
    int files[FILES_MAX];
    int touched = 0;
    int file = -1;
    uint64_t start = 0, end = 0;
    int error;
    Failure failure;

    for (Frame *frame = round; frame != NULL; frame = frame->next)
        *last = frame;
    for (Frame *frame = round; frame != NULL; frame = frame->next) {
        if (frame->file != file || frame->position != end) {
            if ((error = write_all(file, vector, count, start)) != 0)
                return (Failure){"write", error};
            count = 0;
            file = frame->file;
            start = end = frame->position;
        }
        int known = 0;
        while (known < touched && files[known] != file)
            known++;
        if (known == touched) {
            if (touched == FILES_MAX) {
                if ((failure = sync_all(files, touched)).step != NULL)
                    return failure;
                touched = 0;
            }
            files[touched++] = file;
        }
        for (Py_ssize_t i = 0; i < frame->count; i++) {
            if (frame->pieces[i].len == 0)
                continue;
            if (count == IOV_MAX) {
                if ((error = write_all(file, vector, count, start)) != 0)
                    return (Failure){"write", error};
                count = 0;
                start = end;
            }
            vector[count].iov_base = frame->pieces[i].buf;
            vector[count].iov_len = (size_t)frame->pieces[i].len;
            count++;
            end += (uint64_t)frame->pieces[i].len;
        }
    }
    if ((error = write_all(file, vector, count, start)) != 0)
        return (Failure){"write", error};
    return sync_all(files, touched);
}

/* With the mutex held: what the round came to. The frames become ready for release. */
static void publish(Writer *self, Frame *round, Frame *last, Failure failure)
{
    if (failure.step == NULL) {
        self->durable = last->sequence;
        for (Frame *frame = round; frame != NULL; frame = frame->next) {
            self->frames--;
            self->bytes -= frame->size;
        }
    } else {
        self->failure = failure;
        *self->queue_end = self->done; /* what was queued meanwhile is never written */
        self->done = self->queue;
        self->queue = NULL;
        self->queue_end = &self->queue;
    }
    last->next = self->done;
    self->done = round;
    pthread_cond_broadcast(&self->news);
}

static void *work(void *argument)
{
    Writer *self = argument;
    const uint64_t one = 1;
    bool goes_on = true;

    pthread_mutex_lock(&self->mutex);
    while (goes_on) {
        while (self->queue == NULL && !self->is_closing)
            pthread_cond_wait(&self->work, &self->mutex);
        Frame *round = self->queue;
        if (round == NULL)
            break;
        self->queue = NULL;
        self->queue_end = &self->queue;
        pthread_mutex_unlock(&self->mutex);

        Frame *last = NULL;
        Failure failure = perform(round, &last);
        goes_on = failure.step == NULL;

        pthread_mutex_lock(&self->mutex);
        publish(self, round, last, failure);
        pthread_mutex_unlock(&self->mutex);
        while (write(self->event, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_mutex_lock(&self->mutex);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* -- with the interpreter's lock --------------------------------------------------------------- */

static void free_frame(Frame *frame)
{
    for (Py_ssize_t i = 0; i < frame->count; i++)
        PyBuffer_Release(&frame->pieces[i]);
    PyMem_Free(frame);
}

/* Releasing a buffer may run code of its owner, so the mutex is not held. */
static void free_frames(Frame *frame)
{
    while (frame != NULL) {
        Frame *next = frame->next;
        free_frame(frame);
        frame = next;
    }
}

static void release_done(Writer *self)
{
    pthread_mutex_lock(&self->mutex);
    Frame *done = self->done;
    self->done = NULL;
    pthread_mutex_unlock(&self->mutex);
    free_frames(done);
}

static bool is_ours(Writer *self)
{
    if (self->forks == forks)
        return true;
    PyErr_SetString(PyExc_RuntimeError, "the segment writer belongs to the process that made it");
    return false;
}

static PyObject *raise_failure(Failure failure)
{
    PyObject *module = PyImport_ImportModule("postbus.store.log.segment_writer");
    PyObject *type = module ? PyObject_GetAttrString(module, "WriteFailed") : NULL;
    PyObject *error = type ? PyObject_CallFunction(type, "si", failure.step, failure.number) : NULL;
    if (error != NULL)
        PyErr_SetObject(type, error);
    Py_XDECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}

static PyObject *raise_closed(void)
{
    PyErr_SetString(PyExc_ValueError, "the segment writer is closed");
    return NULL;
}

/* A frame with a hold on each piece; NULL with an exception set. */
static Frame *make_frame(long long sequence, int file, long long position, PyObject *pieces)
{
    Py_ssize_t count = PySequence_Size(pieces);
    if (count < 0)
        return NULL;
    if ((size_t)count > (PY_SSIZE_T_MAX - sizeof(Frame)) / sizeof(Py_buffer)) {
        PyErr_NoMemory();
        return NULL;
    }
    Frame *frame = PyMem_Malloc(sizeof(Frame) + (size_t)count * sizeof(Py_buffer));
    if (frame == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    frame->next = NULL;
    frame->sequence = sequence;
    frame->file = file;
    frame->position = (uint64_t)position;
    frame->size = 0;
    frame->count = 0;
    while (frame->count < count) {
        PyObject *piece = PySequence_GetItem(pieces, frame->count);
        Py_buffer *view = &frame->pieces[frame->count];
        int failed = piece == NULL || PyObject_GetBuffer(piece, view, PyBUF_SIMPLE) != 0;
        Py_XDECREF(piece);
        if (failed) {
            free_frame(frame);
            return NULL;
        }
        frame->size += view->len;
        frame->count++;
    }
    return frame;
}

static PyObject *submit(Writer *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "file", "position", "pieces", NULL};
    long long sequence, position;
    int file;
    PyObject *pieces;
    if (!is_ours(self) || !PyArg_ParseTupleAndKeywords(args, kwargs, "LiLO:submit", names, &sequence,
                                                       &file, &position, &pieces))
        return NULL;
    if (position < 0)
        return PyErr_Format(PyExc_ValueError, "a frame at position %lld", position);
    Frame *frame = make_frame(sequence, file, position, pieces);
    if (frame == NULL)
        return NULL;

    pthread_mutex_lock(&self->mutex);
    Frame *done = self->done;
    self->done = NULL;
    Failure failure = self->failure;
    long long before = self->submitted;
    bool is_closing = self->is_closing;
    bool follows = sequence - 1 == before;
    bool fits = self->frames == 0 ||
                (self->frames < self->frames_max && self->bytes + frame->size <= self->bytes_max);
    bool taken = failure.step == NULL && !is_closing && follows && fits;
    if (taken) {
        *self->queue_end = frame;
        self->queue_end = &frame->next;
        self->submitted = sequence;
        self->frames++;
        self->bytes += frame->size;
        pthread_cond_signal(&self->work);
    }
    pthread_mutex_unlock(&self->mutex);

    free_frames(done);
    if (taken)
        Py_RETURN_NONE;
    free_frame(frame);
    if (failure.step != NULL)
        return raise_failure(failure);
    if (is_closing)
        return raise_closed();
    if (!follows)
        return PyErr_Format(PyExc_ValueError, "frame %lld does not follow frame %lld", sequence,
                            before);
    errno = EAGAIN; /* which makes it a BlockingIOError */
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *fileno_(Writer *self, PyObject *Py_UNUSED(none))
{
    if (!is_ours(self))
        return NULL;
    return self->event < 0 ? raise_closed() : PyLong_FromLong(self->event);
}

static PyObject *collect(Writer *self, PyObject *Py_UNUSED(none))
{
    uint64_t count;
    if (!is_ours(self))
        return NULL;
    /* Cleared first: news from here on makes it readable again. */
    while (self->event >= 0 && read(self->event, &count, sizeof count) < 0 && errno == EINTR)
        ;
    release_done(self);
    pthread_mutex_lock(&self->mutex);
    Failure failure = self->failure;
    long long durable = self->durable;
    pthread_mutex_unlock(&self->mutex);
    return failure.step != NULL ? raise_failure(failure) : PyLong_FromLongLong(durable);
}

/* Wait for news for a while. With the mutex held. */
static void wait_for_news(Writer *self)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SIGNALS_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&self->news, &self->mutex, &until);
}

static PyObject *wait_(Writer *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", NULL};
    long long sequence;
    if (!is_ours(self) || !PyArg_ParseTupleAndKeywords(args, kwargs, "L:wait", names, &sequence))
        return NULL;
    Failure failure;
    bool is_durable, is_submitted;
    do {
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&self->mutex);
        is_submitted = sequence <= self->submitted;
        if (is_submitted && self->failure.step == NULL && self->durable < sequence)
            wait_for_news(self);
        failure = self->failure;
        is_durable = self->durable >= sequence;
        pthread_mutex_unlock(&self->mutex);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() != 0)
            return NULL;
    } while (failure.step == NULL && is_submitted && !is_durable);
    release_done(self);
    if (failure.step != NULL)
        return raise_failure(failure);
    if (!is_submitted)
        return PyErr_Format(PyExc_ValueError, "frame %lld was never submitted", sequence);
    Py_RETURN_NONE;
}

/* Let the thread write what is queued and end; then give everything back. */
static void stop(Writer *self)
{
    if (self->is_joined)
        return;
    self->is_joined = true;
    pthread_mutex_lock(&self->mutex);
    self->is_closing = true;
    pthread_cond_signal(&self->work);
    pthread_mutex_unlock(&self->mutex);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    release_done(self);
    close(self->event);
    self->event = -1;
}

static PyObject *close_(Writer *self, PyObject *Py_UNUSED(none))
{
    if (!is_ours(self))
        return NULL;
    stop(self);
    Py_RETURN_NONE;
}

static PyObject *durable(Writer *self, void *Py_UNUSED(closure))
{
    if (!is_ours(self))
        return NULL;
    pthread_mutex_lock(&self->mutex);
    long long found = self->durable;
    pthread_mutex_unlock(&self->mutex);
    return PyLong_FromLongLong(found);
}

/* Start the thread with every signal blocked: signals are for the threads of Python. */
static int start_thread(Writer *self)
{
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error != 0)
        return error;
    error = pthread_create(&self->thread, NULL, work, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_setname_np(self->thread, "postbus-log");
    return error;
}

static int set_up(Writer *self)
{
    pthread_condattr_t clock;
    self->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->event < 0)
        return errno;
    /* None of these allocates or can fail on Linux. */
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->work, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&self->news, &clock);
    pthread_condattr_destroy(&clock);
    self->queue_end = &self->queue;
    self->forks = forks;
    int error = start_thread(self);
    if (error != 0) {
        close(self->event);
        return error;
    }
    self->is_set_up = true;
    return 0;
}

static PyObject *new_writer(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"durable", "frames_max", "bytes_max", NULL};
    long long last;
    long long frames_max, bytes_max;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLL:NativeSegmentWriter", names, &last,
                                     &frames_max, &bytes_max))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Writer *self = (Writer *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->submitted = self->durable = last;
    self->frames_max = frames_max;
    self->bytes_max = bytes_max;
    int error = set_up(self);
    if (error != 0) {
        Py_DECREF(self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void dealloc(Writer *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->is_set_up && self->forks == forks) {
        stop(self);
        pthread_cond_destroy(&self->news);
        pthread_cond_destroy(&self->work);
        pthread_mutex_destroy(&self->mutex);
    } else if (self->is_set_up && self->event >= 0) {
        close(self->event); /* in a child; the mutex and the frames are as the fork left them */
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"submit", METHOD(submit), METH_VARARGS | METH_KEYWORDS, NULL},
    {"fileno", METHOD(fileno_), METH_NOARGS, NULL},
    {"collect", METHOD(collect), METH_NOARGS, NULL},
    {"wait", METHOD(wait_), METH_VARARGS | METH_KEYWORDS, NULL},
    {"close", METHOD(close_), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"durable", (getter)durable, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The SegmentWriter whose thread never needs the interpreter's lock."},
    {Py_tp_new, new_writer},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "postbus.store.log._segment_writer.NativeSegmentWriter",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int add_type(PyObject *module)
{
    static bool counts_forks;
    if (!counts_forks && pthread_atfork(NULL, NULL, count_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    counts_forks = true;
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_type}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "postbus.store.log._segment_writer",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__segment_writer(void)
{
    return PyModuleDef_Init(&definition);
}
