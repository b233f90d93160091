// LD_PRELOAD: the wall clock of a process is off by as many seconds as the file named by CHAOS_CLOCK says, at any time.
// A wait until a time of that clock ends when the clock shows it, though the kernel, which has another clock, waits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset;
static long zero;

static long seconds(void) {
    if (!offset) {
        const char *name = getenv("CHAOS_CLOCK");
        int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        offset = mapped == MAP_FAILED ? &zero : mapped;
    }
    return *offset;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (!code && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}

// The kernel's time for one of the wall clock. Times of the monotonic clock, which begins with the host, are small.
static struct timespec kernels(const struct timespec *until) {
    struct timespec real = *until;
    if (real.tv_sec > 1000000000) real.tv_sec -= seconds();
    return real;
}

static void *next(const char *name, const char *version) {  // not the oldest version, which some have beside the newest
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = next("pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec time = kernels(until);
    return real(condition, mutex, &time);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = next("sem_timedwait", "GLIBC_2.34");
    struct timespec time = kernels(until);
    return real(semaphore, &time);
}

long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = dlsym(RTLD_NEXT, "syscall");
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    struct timespec time;
    int operation = number == SYS_futex ? a[1] & FUTEX_CMD_MASK : -1;
    if (operation == FUTEX_WAIT_BITSET && a[1] & FUTEX_CLOCK_REALTIME && a[3]) {
        time = kernels((const struct timespec *)a[3]);
        a[3] = (long)&time;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
