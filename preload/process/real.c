/* SPDX-License-Identifier: MIT */
/*
 * real.c - finds the calls that this library replaces.
 *
 * Programs take locks before any constructor has run, and dlsym may allocate, which may lock. So lock, trylock, unlock,
 * init and destroy of mutexes are bound to libc's own from the start, by names that only libc defines, and own_syscall
 * stands in for syscall. dlsym is asked later, so that other libraries that stand before libc are called too.
 *
 * The condition calls have two versions, and the old version uses another structure. Where libc is the next library,
 * the new version is requested by name. Other libraries, such as the thread sanitizer, have no versions.
 * pthread_cond_clockwait has only the new version. It is never requested by version, because dlvsym allocates when a
 * name is missing, perhaps inside a malloc that calls us while it initialises itself.
 */
#include "process/real.h"

#include "os/os.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define COND "GLIBC_2.3.2"
#else
#define FIRST "GLIBC_2.17"
#define COND "GLIBC_2.17"
#endif

__asm__(".symver libc_mutex_lock, __pthread_mutex_lock@" FIRST);
__asm__(".symver libc_mutex_trylock, __pthread_mutex_trylock@" FIRST);
__asm__(".symver libc_mutex_unlock, __pthread_mutex_unlock@" FIRST);
__asm__(".symver libc_mutex_init, __pthread_mutex_init@" FIRST);
__asm__(".symver libc_mutex_destroy, __pthread_mutex_destroy@" FIRST);
int libc_mutex_lock(pthread_mutex_t *m);
int libc_mutex_trylock(pthread_mutex_t *m);
int libc_mutex_unlock(pthread_mutex_t *m);
int libc_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *how);
int libc_mutex_destroy(pthread_mutex_t *m);

/* libc's syscall for the time before dlsym. Only the kernel knows how many arguments there are. */
static long own_syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    long result = rsi_syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}

struct rpi_real rpi_real = {
    .syscall = own_syscall,
    .pthread_mutex_lock = libc_mutex_lock,
    .pthread_mutex_trylock = libc_mutex_trylock,
    .pthread_mutex_unlock = libc_mutex_unlock,
    .pthread_mutex_init = libc_mutex_init,
    .pthread_mutex_destroy = libc_mutex_destroy,
};

#define ENTRY(name) { #name, offsetof(struct rpi_real, name) },
static const struct {
    const char *name;
    size_t at;
} entries[] = { RPI_REALS(ENTRY) };

static bool has_two(const char *name)
{
    return strncmp(name, "pthread_cond_", strlen("pthread_cond_")) == 0 &&
           strcmp(name, "pthread_cond_clockwait") != 0;
}

static bool are_of_one_library(const void *a, const void *b)
{
    Dl_info of_a, of_b;
    return dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 && of_a.dli_fbase == of_b.dli_fbase;
}

static void find(void *where, const char *name)
{
    void **to = where, *found = dlsym(RTLD_NEXT, name);
    if (found && has_two(name)) {
        void *newer = dlvsym(RTLD_NEXT, name, COND);
        found = are_of_one_library(found, newer) ? newer : found;
    }
    if (found)
        rsi_store_relaxed(to, found);
    else if (!rsi_load_relaxed(to))
        rsi_fatal("libc has no %s: it is older than 2.35", name);
}

/* Several threads may run this at once. All find the same calls. */
RSI_COLD void rpi_real_find_all(void)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        find((char *)&rpi_real + entries[i].at, entries[i].name);
    rpi_real.mutexes_are_libc = rpi_real.pthread_mutex_trylock == libc_mutex_trylock &&
                                rpi_real.pthread_mutex_unlock == libc_mutex_unlock;
    rpi_real.semaphores_are_libc =
        are_of_one_library((void *)rpi_real.sem_trywait, (void *)libc_mutex_trylock) &&
        are_of_one_library((void *)rpi_real.sem_post, (void *)libc_mutex_trylock);
    rsi_store_release(&rpi_real.is_found, true); /* pairs with rpi_real_find */
}
