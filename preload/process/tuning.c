/* SPDX-License-Identifier: MIT */
/*
 * tuning.c - what `rouse run` is asked to change in the program, and nothing if it is not: ROUSE_RUN_SLACK_NS, the
 * slack of all threads' timers, and ROUSE_RUN_SPIN_NS, for how long a mutex is tried before its thread sleeps.
 *
 * A thread that spins takes the lock as any other that comes by; who sleeps for it does not lose its place, since libc
 * keeps none. Not for mutexes that inherit or protect priority, whose holder may need this very processor, nor for
 * robust ones; and not while the holder is known to wait, since then it cannot unlock.
 */
#include "preload.h"

#include "os/os.h"

#include <stdlib.h>
#include <sys/prctl.h>

#define NEVER (16 | 32 | 64) /* of libc's kinds: robust, inherits, protects */
#define FIRST 4u             /* pauses between two tries, which double */
#define MOST 64u
#define NS_MOST UINT64_C(1000000000)

static uint64_t slack_ns, spin_ns;

/* A number of the environment, which is the program's as well; 0: it is not there, or no such number. */
static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long long number = text ? strtoull(text, &end, 10) : 0;
    return end && *end == 0 && number <= NS_MOST ? number : 0;
}

void rpi_tuning_setup(void)
{
    spin_ns = number_of("ROUSE_RUN_SPIN_NS");
    slack_ns = number_of("ROUSE_RUN_SLACK_NS");
    /* Threads have that of the one that makes them. */
    if (slack_ns && prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0) != 0)
        slack_ns = 0;
}

void rpi_tuning_note(void)
{
    rsi_store_relaxed(&rsi_file_head->slack_ns, slack_ns);
    rsi_store_relaxed(&rsi_file_head->spin_ns, spin_ns);
}

static bool try(pthread_mutex_t *m, uint64_t until_ns)
{
    for (unsigned pauses = FIRST;; pauses = pauses < MOST ? 2 * pauses : MOST) {
        for (unsigned i = 0; i < pauses; i++)
            rsi_cpu_relax();
        if (rsi_load_relaxed(&m->__data.__lock) == 0 && rpi_real.pthread_mutex_trylock(m) == 0)
            return true;
        if (rpi_thread_waits(rsi_load_relaxed(&m->__data.__owner)) || rsi_now_ns() >= until_ns)
            return false;
    }
}

bool rpi_tuning_spin(struct rpi_thread *self, pthread_mutex_t *m, struct rpi_contest *contest,
                     const void *site)
{
    if (spin_ns == 0 || m->__data.__kind & NEVER || !rpi_thread_begin(self))
        return false;
    bool is_got = try(m, rsi_now_ns() + spin_ns);
    uint64_t now = rsi_tsc();
    contest->spin_ticks = now - contest->since;
    if (is_got) {
        contest->key.site = rsi_site_of(self->writer, site);
        contest->key.name = rpi_init_site_name(self->writer, m);
        rpi_contest_end(self, contest, true, now, true);
    }
    self->is_busy = false;
    return is_got;
}
