"""A clock that is wrong: a library that moves the wall clock of the programs that it is loaded into, and no other.

    environ = {**os.environ, **shifted(seconds=7_200, folder=tmp_path)}

The steady clock stays as it is, as on a machine whose time nobody has set.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static time_t ahead(void) { const char *text = getenv("CLOCK_AHEAD"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(found, zone);
    if (!failed) found->tv_sec += ahead();
    return failed;
}

/* The end of a wait by the wall clock is told in ours; the kernel keeps its own. By the steady clock it is small. */
static struct timespec true_end(const struct timespec *end) {
    struct timespec found = *end;
    if (end->tv_sec > 1000000000) found.tv_sec -= ahead();
    return found;
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict on, pthread_mutex_t *restrict held, const struct timespec *restrict end) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec shifted = true_end(end);
    return real(on, held, &shifted);
}

int cnd_timedwait(cnd_t *restrict on, mtx_t *restrict held, const struct timespec *restrict end) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec shifted = true_end(end);
    return real(on, held, &shifted);
}

int sem_timedwait(sem_t *restrict on, const struct timespec *restrict end) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec shifted = true_end(end);
    return real(on, &shifted);
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


def shifted(seconds: int, folder: Path) -> dict[str, str]:
    """The variables that move a program's wall clock by so many seconds. Skips without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for a clock that is wrong")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(seconds)}
