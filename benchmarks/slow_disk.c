/* A slower disk, for LD_PRELOAD: each flush takes BENCH_FLUSH_US microseconds more, as one over a network does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

typedef int (*flush)(int);

static int slowly(const char *name, int file)
{
    const char *given = getenv("BENCH_FLUSH_US");
    long us = given ? atol(given) : 0;
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
    return ((flush)dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return slowly("fsync", file); }
int fdatasync(int file) { return slowly("fdatasync", file); }
