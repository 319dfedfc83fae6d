/* Stands between a process and two calls of the operating system, `pwritev` and `fdatasync`
   (LD_PRELOAD). It notes each call, holds calls back until it is told to let them pass, cuts writes
   short and makes calls fail. `calls.py` is its Python side. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, SYNC, KINDS };
enum { NOTED_MAX = 100000, PLANNED_MAX = 10000, VECTOR_MAX = 1024 };

struct call {
    int kind, file, pieces;
    long position, bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct call noted[NOTED_MAX];
static int count, held[KINDS], waiting[KINDS];
static long plans[KINDS][PLANNED_MAX];
static int planned[KINDS], used[KINDS];

/* What the next call of the kind is to do: 0 all of it, > 0 so many bytes, < 0 fail with this errno. */
void calls_plan(int kind, long what)
{
    pthread_mutex_lock(&mutex);
    plans[kind][planned[kind]++] = what;
    pthread_mutex_unlock(&mutex);
}

void calls_hold(int kind, int is_held)
{
    pthread_mutex_lock(&mutex);
    held[kind] = is_held;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* Block until a call of the kind is held back. */
void calls_await_held(int kind)
{
    pthread_mutex_lock(&mutex);
    while (waiting[kind] == 0)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* Block until so many calls were made. */
void calls_await(int wanted)
{
    pthread_mutex_lock(&mutex);
    while (count < wanted)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

int calls_made(void)
{
    pthread_mutex_lock(&mutex);
    int made = count;
    pthread_mutex_unlock(&mutex);
    return made;
}

struct call calls_at(int number)
{
    return noted[number];
}

static long enter(int kind)
{
    pthread_mutex_lock(&mutex);
    waiting[kind]++;
    pthread_cond_broadcast(&changed);
    while (held[kind])
        pthread_cond_wait(&changed, &mutex);
    waiting[kind]--;
    long plan = used[kind] < planned[kind] ? plans[kind][used[kind]++] : 0;
    pthread_mutex_unlock(&mutex);
    return plan;
}

static void leave(struct call call)
{
    int before = errno;
    pthread_mutex_lock(&mutex);
    noted[count++] = call;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    errno = before;
}

ssize_t pwritev64(int file, const struct iovec *vector, int pieces, off64_t position)
{
    ssize_t (*real)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, "pwritev64");
    struct iovec cut[VECTOR_MAX];
    ssize_t written = -1;
    long plan = enter(WRITE);
    if (plan < 0) {
        errno = (int)-plan;
    } else if (plan == 0) {
        written = real(file, vector, pieces, position);
    } else {
        int used_pieces = 0;
        for (long left = plan; used_pieces < pieces && left > 0; used_pieces++) {
            cut[used_pieces] = vector[used_pieces];
            if ((long)cut[used_pieces].iov_len > left)
                cut[used_pieces].iov_len = (size_t)left;
            left -= (long)cut[used_pieces].iov_len;
        }
        written = real(file, cut, used_pieces, position);
    }
    leave((struct call){WRITE, file, pieces, position, written});
    return written;
}

ssize_t pwritev(int file, const struct iovec *vector, int pieces, off_t position)
{
    return pwritev64(file, vector, pieces, position);
}

/* What Python calls. It passes no flags. */
ssize_t pwritev64v2(int file, const struct iovec *vector, int pieces, off64_t position, int flags)
{
    (void)flags;
    return pwritev64(file, vector, pieces, position);
}

ssize_t pwritev2(int file, const struct iovec *vector, int pieces, off_t position, int flags)
{
    (void)flags;
    return pwritev64(file, vector, pieces, position);
}

int fdatasync(int file)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    long plan = enter(SYNC);
    int result = -1;
    if (plan < 0)
        errno = (int)-plan;
    else
        result = real(file);
    leave((struct call){SYNC, file, 0, 0, result});
    return result;
}
