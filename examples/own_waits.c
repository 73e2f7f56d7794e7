/* SPDX-License-Identifier: MIT */
/*
 * own_waits.c - a program that examines its own waits, stuck workers and stack memory.
 *
 * usage: own_waits
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include <rouse/rouse.h>

#define MS UINT64_C(1000000)

static struct rouse_wait_record last;

static void *sleeper(void *arg)
{
    (void)arg;
    rouse_sleep(5 * MS);
    rouse_obs_last_wait(&last); /* the calling thread's last wait */
    return NULL;
}

int main(void)
{
    struct rouse_totals totals;
    struct rouse_monitor_figures monitor;
    struct rouse_stuck stuck[4];
    struct rouse_thread *t;
    int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC), error;

    /* Also record how long locks are held. */
    if (quiet < 0 || rouse_obs_set_mode(ROUSE_OBS_LOCKS) < 0 ||
        rouse_thread_create(&t, NULL, sleeper, NULL) < 0)
        return 1;
    rouse_thread_join(t, NULL);
    printf("last wait: %s, %s\n", rouse_wait_kind_name(last.kind),
           rouse_verdict_name(last.verdict));

    error = rouse_obs_totals(&totals);
    if (error == 0)
        printf("slept %s\n", totals.wait_ns[ROUSE_WAIT_SLEEP] >= 4 * MS ? "5 ms" : "too little");
    else
        printf("nothing is recorded: error %d\n", -error);

    /* The threads that keep a worker for too long, and the number of spare workers that replaced them. */
    rouse_obs_monitor(&monitor);
    for (unsigned i = 0, count = rouse_obs_stuck(stuck, 4); i < count; i++)
        fprintf(stderr, "stuck: thread %" PRIu64 ", %" PRIu64 " us\n", stuck[i].thread_id,
                stuck[i].lasted_ns / 1000);
    printf("%s\n", monitor.spares <= monitor.spares_bound ? "spares within bound" : "too many");

    rouse_obs_dump(quiet); /* each thread with its state and backtrace; SIGQUIT does so to stderr */
    close(quiet);

    /* Return the unused stack memory of parked threads now, and from now on when memory is short. */
    rouse_stacks_trim(0);
    error = rouse_stacks_trim_on_pressure();
    if (error < 0)
        fprintf(stderr, "memory pressure cannot be watched here: error %d\n", -error);
    return 0;
}
