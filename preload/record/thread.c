/* SPDX-License-Identifier: MIT */
/*
 * thread.c - keeps one record for each kernel thread of the program, from its first recorded call to its exit.
 *
 * A thread has a record from its first lock on, so that other threads can look up where it acquired one. It has a
 * slot in the file from its first wait on.
 */
#include "record/thread.h"

#include "os/os.h"
#include "process/guard.h"
#include "record/event.h"
#include "record/hold.h"
#include "record/wait_ring.h"
#include "record/waiters.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define TIDS 65536u
#define NAME 16 /* bytes of a thread's name, with its end */

static struct {
    uint32_t guard;
    struct rpi_thread *free, *all;
    struct rpi_thread **by_tid; /* by the low bits of the tid; enter stores with release */
    void (*at_exit)(struct rpi_thread *);
    pthread_key_t key;
} threads;

static struct rpi_thread *take(void)
{
    rsi_guard_lock(&threads.guard);
    struct rpi_thread *thread = threads.free;
    if (thread)
        threads.free = thread->next_free;
    rsi_guard_unlock(&threads.guard);
    if (thread) {
        struct rpi_thread *all = thread->next_all;
        struct rpi_holds *holds = thread->holds;
        rpi_hold_clear(holds);
        memset(thread, 0, sizeof *thread);
        thread->next_all = all;
        thread->holds = holds;
        return thread;
    }
    thread = rsi_map(sizeof *thread);
    if (!thread)
        return NULL;
    rsi_guard_lock(&threads.guard);
    thread->next_all = threads.all;
    threads.all = thread;
    rsi_guard_unlock(&threads.guard);
    return thread;
}

RSI_COLD struct rpi_thread *rpi_thread_enter(void)
{
    int error = errno;
    if (!rpi_recording_is_ready() || rpi_self_is_closed || !*rpi_recording_here)
        return NULL;
    rpi_self_is_closed = 1;
    struct rpi_thread *self = take();
    if (self && pthread_setspecific(threads.key, self) == 0) {
        rsi_store_relaxed(&self->handle, pthread_self());
        rsi_store_relaxed(&self->tid, (int32_t)rsi_gettid());
        self->dry_fd = -1;
        self->spent = rsi_cpu_time_begin(self->tid);
        self->begin_tsc = rsi_tsc();
        rsi_store_release(&threads.by_tid[(uint32_t)self->tid % TIDS], self); /* pairs with find */
        rpi_self = self;
    }
    rpi_self_is_closed = 0;
    errno = error;
    return rpi_self;
}

static void name_put(struct rsi_store_thread *slot, const char name[NAME])
{
    for (size_t i = 0; i < NAME; i++)
        rsi_store_relaxed(&slot->name[i], name[i]);
}

static void name_read(struct rsi_store_thread *slot)
{
    char name[NAME] = "";
    rsi_syscall2(SYS_prctl, PR_GET_NAME, name);
    name_put(slot, name);
}

static void slot_end(const struct rpi_thread *self)
{
    struct rsi_store_thread *slot = self->slot;
    uint64_t now = rsi_tsc();
    if (rsi_unlikely(rpi_event_pages != 0))
        rpi_event_end(self, now);
    if (slot->doing == RSI_DOES_WAIT) /* see leave */
        rsi_count(slot->ticks[rpi_thread_waits_in(slot)], now - slot->since_tsc);
    else
        rsi_count(slot->ticks[RSI_IN_USR], now - slot->run_tsc);
    rsi_writer_slot_end(self->writer, slot, now);
}

static void leave(void *arg)
{
    struct rpi_thread *self = arg;
    struct rpi_mark mark;
    rpi_self_is_closed = 1;
    rpi_self = NULL;
    if (!*rpi_recording_here)
        return;
    if (self->object) /* it left a wait: cancelled at any instruction, or pthread_exit in a handler */
        rpi_waiters_leave(self, false, &mark);
    /* The exit wakes the joiners. */
    (void)rpi_waiters_wake(self, (const void *)pthread_self(), RPI_WAKES_ALL, NULL);
    threads.at_exit(self);
    rpi_wait_ring_finish(self);
    rsi_guard_lock(&threads.guard); /* a thread that renames this one has finished, or sees tid 0 */
    rsi_store_relaxed(&self->tid, 0);
    if (self->slot)
        name_read(self->slot); /* the program may have changed it by prctl */
    rsi_guard_unlock(&threads.guard);
    if (self->slot && rsi_load_relaxed(&rsi_file_head))
        slot_end(self);
    if (self->writer)
        rsi_writer_give(self->writer);
    rsi_guard_lock(&threads.guard);
    self->next_free = threads.free;
    threads.free = self;
    rsi_guard_unlock(&threads.guard);
}

/*
 * The record may belong to another thread by now. So the fields that readers see are guesses, and readers check them
 * twice.
 */
static const struct rpi_thread *find(int32_t tid)
{
    const struct rpi_thread *thread =
        rsi_load_acquire(&threads.by_tid[(uint32_t)tid % TIDS]); /* pairs with enter */
    return thread && tid != 0 && rsi_load_relaxed(&thread->tid) == tid ? thread : NULL;
}

bool rpi_thread_waits(int32_t tid)
{
    const struct rpi_thread *thread = find(tid);
    const struct rsi_store_thread *slot = thread ? rsi_load_relaxed(&thread->slot) : NULL;
    return slot && rsi_load_relaxed(&slot->doing) == RSI_DOES_WAIT;
}

const void *rpi_thread_holder_site(int32_t tid, const void *lock)
{
    const struct rpi_thread *holder = find(tid);
    if (!holder)
        return NULL;
    unsigned at = rpi_thread_held_at(lock);
    const void *site = rsi_load_relaxed(&holder->held[at].site);
    return rsi_load_relaxed(&holder->held[at].lock) == lock ? site : NULL;
}

uint64_t rpi_thread_switches(void)
{
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? (uint64_t)used.ru_nvcsw : 0;
}

/* Make the slot visible, with the present name. A thread that renames this one later finds the slot. */
static void slot_put(struct rpi_thread *self, struct rsi_store_thread *slot)
{
    rsi_guard_lock(&threads.guard);
    name_read(slot);
    rsi_store_relaxed(&self->slot, slot);
    rsi_guard_unlock(&threads.guard);
}

static bool slot_new(struct rpi_thread *self)
{
    struct rsi_store_thread *slot = rsi_writer_slot(self->writer);
    uint64_t now = rsi_tsc();
    if (!slot)
        return false;
    rsi_writer_begin(self->writer, self->begin_tsc, &self->spent);
    rsi_store_relaxed(&slot->begin_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->since_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->run_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->wake_tsc, now);
    rsi_store_relaxed(&slot->origin, (uint8_t)(self->tid == getpid() ? 2 : 1));
    rsi_store_relaxed(&slot->worker, self->writer->index);
    rsi_store_relaxed(&slot->tid, self->tid);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    slot_put(self, slot);
    rsi_store_release(&slot->id, (uint64_t)self->tid); /* a reader that sees the id sees the rest */
    if (rsi_unlikely(rpi_event_pages != 0))
        rpi_event_begin(self);
    return true;
}

void rpi_thread_rename(struct rpi_thread *self, pthread_t handle, const char *text)
{
    char name[NAME] = "";
    bool was_busy = self->is_busy;
    memcpy(name, text, strnlen(text, NAME - 1));
    self->is_busy = true; /* before locking the guard, as in rpi_thread_begin */
    rsi_guard_lock(&threads.guard);
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all)
        if (rsi_load_relaxed(&thread->tid) != 0 && rsi_load_relaxed(&thread->slot) &&
            pthread_equal(rsi_load_relaxed(&thread->handle), handle))
            name_put(thread->slot, name);
    rsi_guard_unlock(&threads.guard);
    self->is_busy = was_busy;
}

bool rpi_thread_begin(struct rpi_thread *self)
{
    if (self->is_busy || !rpi_recording_is_on())
        return false;
    int error = errno;
    self->is_busy = true; /* before locking a guard: a signal handler that locks is not recorded */
    if (!self->slot) {
        if (!self->writer && (rsi_load_acquire(&rsi_file_head) ||
                              rpi_recording_open())) /* pairs with rsi_file_open */
            self->writer = rsi_writer_take(false, self->tid);
        if (!self->writer || !slot_new(self))
            self->is_busy = false;
    }
    errno = error;
    return self->is_busy;
}

bool rpi_thread_setup(void (*at_exit)(struct rpi_thread *))
{
    threads.at_exit = at_exit;
    threads.by_tid = rsi_map(TIDS * sizeof *threads.by_tid);
    return threads.by_tid && pthread_key_create(&threads.key, leave) == 0;
}

void rpi_thread_child_locks(void)
{
    threads.guard = 0;
}

/* The child has only the calling thread, and none of the parent's records. */
void rpi_thread_child(void)
{
    rpi_self = NULL;
    rpi_thread_child_locks();
    threads.free = threads.all;
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all) {
        thread->next_free = thread->next_all;
        thread->tid = 0;
        thread->wait = NULL; /* also for a handler that forks during the parent's wait */
        thread->place = 0;
    }
    pthread_setspecific(threads.key, NULL);
}

void rpi_thread_finish_rings(void)
{
    sigset_t before;
    rpi_guard_enter(&threads.guard, &before);
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all)
        if (rsi_load_relaxed(&thread->tid))
            rpi_wait_ring_finish(thread);
    rpi_guard_exit(&threads.guard, &before);
}
