/* SPDX-License-Identifier: MIT */
/*
 * lifecycle.c - start, end and fork of a recorded process. This is the top of librouse-preload.so, which records what
 * the threads of a program that knows nothing of rouse wait for. `rouse run` names it in LD_PRELOAD.
 *
 * Rules: each replaced call returns and does what libc's own does. The functions below leave errno alone, which C
 * guarantees to be 0 when main begins. Memory comes from mmap alone, since the program's
 * malloc may hold a lock that our caller waits for.
 */
#include "accept/epoll_member.h"
#include "accept/listener.h"
#include "accept/order.h"
#include "obs/file.h"
#include "obs/event_ring.h"
#include "obs/site.h"
#include "process/real.h"
#include "process/recording.h"
#include "process/stack.h"
#include "process/tuning.h"
#include "record/event.h"
#include "record/fd_class.h"
#include "record/hold.h"
#include "record/init_site.h"
#include "record/kernel_join.h"
#include "record/thread.h"
#include "record/wait.h"
#include "record/wait_ring.h"
#include "record/waiters.h"

static void note(void)
{
    enum rouse_obs_mode mode = rpi_event_pages      ? ROUSE_OBS_TRACE
                               : rpi_hold_takes_all ? ROUSE_OBS_LOCKS
                                                    : ROUSE_OBS_COUNTED;
    rsi_store_relaxed(&rsi_file_head->mode, (uint32_t)mode);
    rsi_store_relaxed(&rsi_file_head->recorder, (uint32_t)RSI_STORE_PRELOAD);
    rpi_tuning_note();
    rpi_init_site_note();
    rpi_order_note();
}

/* Put every listener back into its set, and leave the queue. */
static void confine(void)
{
    rpi_epoll_member_restore();
    if (rpi_self)
        rpi_order_leave(rpi_self);
}

static const struct rpi_recording_calls calls = { note, confine };

/*
 * A signal handler has forked while its thread was in our own code, which goes on in the child when the handler
 * returns. So the child keeps all structures, but writes to a copy of the parent's file, and is not recorded: this
 * does not set *rpi_recording_here again. No other thread exists there that could release a lock.
 */
static void child_in_our_code(void)
{
    rsi_file_detach();
    rpi_thread_child_locks();
    rpi_waiters_child();
    rpi_listener_child();
    rpi_epoll_member_child();
    rsi_writers_child_locks();
    rsi_sites_child_locks();
}

static void child(void)
{
    if (rpi_recording_is_confined())
        return;
    int error = errno;
    if (rpi_self && rpi_self->is_busy && !rpi_self->is_asleep) {
        child_in_our_code();
        errno = error;
        return;
    }
    rpi_recording_child();
    rpi_thread_child();
    rpi_waiters_child();
    rpi_listener_child();
    rpi_fd_class_child();
    rpi_order_child();
    rpi_wait_child();
    rpi_wait_ring_child();
    rpi_epoll_member_child();
    rpi_init_site_child();
    rsi_file_child();
    rsi_event_ring_child();
    rsi_sites_child();
    rsi_writers_child();
    errno = error;
}

/* Of this library; the linker defines both. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static void set_up(void)
{
    rpi_real_find();
    rpi_tuning_setup();
    rpi_hold_setup();
    rpi_order_setup();
    rpi_wait_ring_setup();
    rpi_event_setup();
    (void)rsi_sites_setup(rpi_stack_end);
    rsi_walk_leaves_out(__ehdr_start, _end);
    if (!rpi_thread_setup(rpi_order_end) || !rpi_recording_setup(&calls) ||
        pthread_atfork(NULL, NULL, child) != 0 || !rpi_recording_open())
        return;
    rpi_kernel_join_begin();
    rpi_recording_start();
}

__attribute__((constructor)) static void begin(void)
{
    int error = errno;
    set_up();
    errno = error;
}

__attribute__((destructor)) static void end(void)
{
    int error = errno;
    if (!rsi_load_relaxed(&rsi_file_head) || !rpi_recording_is_on())
        return;
    rsi_file_end();
    /* Closed: exit was called in a signal handler while this thread holds the guard. */
    if (rpi_wait_rings && !rpi_self_is_closed)
        rpi_thread_finish_rings();
    errno = error;
}
