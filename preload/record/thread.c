/* SPDX-License-Identifier: MIT */
/*
 * thread.c - the program's kernel threads, the file that they are recorded in, and its beginning and end.
 *
 * A thread is known from its first lock on, so that others can ask where it got one; it has a slot in the file from
 * its first wait on. The file is made when the program begins, so that one that never waits is told from one that was
 * not recorded; a child of a fork makes its own at its first wait, for most run another program before that.
 */
#include "accept/order.h"

#include "os/os.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define TIDS 65536u
#define NAME 16 /* of a thread, with its end */

__thread struct rpi_thread *rpi_self;
__thread uint8_t rpi_self_is_closed;
volatile const uint32_t *rpi_recording_here;
bool rpi_recording_confined;

static uint32_t *here; /* that page, for those that write it */

static struct {
    uint32_t guard;
    struct rpi_thread *free, *all;
    struct rpi_thread **by_tid; /* one of those whose number ends alike; release by enter */
    pthread_key_t key;
    bool is_ready;   /* the constructor has run; release */
    bool is_aside;   /* librouse records: nothing more is */
    bool is_refused; /* the file cannot be made */
} threads;

/* librouse calls it, by name, before it makes a file of its own. */
RPI_EXPORT void rouse_preload_step_aside(void);
void rouse_preload_step_aside(void)
{
    rsi_store_relaxed(&threads.is_aside, true);
}

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
    if (!rsi_load_acquire(&threads.is_ready) || rpi_self_is_closed || !*rpi_recording_here)
        return NULL; /* is_ready pairs with begin */
    rpi_self_is_closed = 1;
    struct rpi_thread *self = take();
    if (self && pthread_setspecific(threads.key, self) == 0) {
        rsi_store_relaxed(&self->handle, pthread_self());
        rsi_store_relaxed(&self->tid, (int32_t)rsi_gettid());
        self->dry_fd = -1;
        self->begin_tsc = rsi_tsc();
        rsi_store_release(&threads.by_tid[(uint32_t)self->tid % TIDS],
                          self); /* pairs with holder_site */
        rpi_self = self;
    }
    rpi_self_is_closed = 0;
    errno = error;
    return rpi_self;
}

static void leave(void *arg)
{
    struct rpi_thread *self = arg;
    struct rpi_mark mark;
    rpi_self_is_closed = 1;
    rpi_self = NULL;
    if (!*rpi_recording_here)
        return;
    if (self->object) /* out of a wait: cancelled at any instruction, or by pthread_exit in a handler */
        rpi_waiters_leave(self, false, &mark);
    (void)rpi_waiters_wake(self, (const void *)pthread_self(), RPI_WAKES_ALL,
                           NULL); /* who joins it */
    rpi_order_end(self);
    rpi_wait_ring_tell(self);
    rsi_guard_lock(&threads.guard); /* whoever names it has done so, or sees that it has gone */
    rsi_store_relaxed(&self->tid, 0);
    rsi_guard_unlock(&threads.guard);
    if (self->slot && rsi_load_relaxed(&rsi_file_head)) {
        rsi_count(self->slot->ticks[RSI_IN_USR], rsi_tsc() - self->slot->run_tsc);
        rsi_writer_slot_end(self->writer, self->slot);
    }
    if (self->writer)
        rsi_writer_give(self->writer);
    rsi_guard_lock(&threads.guard);
    self->next_free = threads.free;
    threads.free = self;
    rsi_guard_unlock(&threads.guard);
}

/* A block may be another thread's by now: what is read of it is a guess that is looked at twice. */
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

/* While the guard is held for long: a handler that came to it, or that ended the process, would wait for itself. */
static void block_and_lock(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, before);
    rsi_guard_lock(&threads.guard);
}

static void unlock_and_unblock(const sigset_t *before)
{
    rsi_guard_unlock(&threads.guard);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* What is called to make it may end a cancelled thread, which would leave the guard behind. */
static bool file_open(void)
{
    int cancel;
    sigset_t before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    block_and_lock(&before);
    if (!rsi_file_head && !threads.is_refused) {
        char reason[192]; /* told by `rouse run`: standard error is the program's */
        threads.is_refused = rsi_file_open(reason, sizeof reason) != 0;
        if (!threads.is_refused) {
            rsi_store_relaxed(&rsi_file_head->mode,
                              (uint32_t)(rpi_hold_is_on ? ROUSE_OBS_LOCKS : ROUSE_OBS_COUNTED));
            rsi_store_relaxed(&rsi_file_head->recorder, (uint32_t)RSI_STORE_PRELOAD);
            rpi_tuning_note();
            rpi_init_site_note();
            rpi_order_note();
        }
    }
    unlock_and_unblock(&before);
    pthread_setcancelstate(cancel, NULL);
    return !threads.is_refused;
}

void rpi_recording_settle(void)
{
    int error = errno;
    if (rsi_load_acquire(&threads.is_ready) && !rpi_self_is_closed && *rpi_recording_here &&
        !rsi_load_relaxed(&threads.is_aside)) /* with begin */
        (void)file_open();
    errno = error;
}

static void name_put(struct rsi_store_thread *slot, const char name[NAME])
{
    for (size_t i = 0; i < NAME; i++)
        rsi_store_relaxed(&slot->name[i], name[i]);
}

/* The slot is its thread's for others, with the name of this moment: who changes it later finds the slot. */
static void slot_put(struct rpi_thread *self, struct rsi_store_thread *slot)
{
    char name[NAME] = "";
    rsi_guard_lock(&threads.guard);
    prctl(PR_GET_NAME, name);
    name_put(slot, name);
    rsi_store_relaxed(&self->slot, slot);
    rsi_guard_unlock(&threads.guard);
}

static bool slot_new(struct rpi_thread *self)
{
    struct rsi_store_thread *slot = rsi_writer_slot(self->writer);
    uint64_t now = rsi_tsc();
    if (!slot)
        return false;
    rsi_store_relaxed(&slot->begin_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->since_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->run_tsc, self->begin_tsc);
    rsi_store_relaxed(&slot->wake_tsc, now);
    rsi_store_relaxed(&slot->origin, self->tid == getpid() ? 2u : 1u);
    rsi_store_relaxed(&slot->worker, self->writer->index);
    rsi_store_relaxed(&slot->tid, self->tid);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    slot_put(self, slot);
    rsi_store_release(&slot->id, (uint64_t)self->tid); /* the rest is there for a reader */
    return true;
}

/* Of any thread: a program may name its workers when they wait already. */
static void name_changed(struct rpi_thread *self, pthread_t handle, const char *text)
{
    char name[NAME] = "";
    bool was_busy = self->is_busy;
    memcpy(name, text, strnlen(text, NAME - 1));
    self->is_busy = true; /* before a guard is taken, as in begin */
    rsi_guard_lock(&threads.guard);
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all)
        if (rsi_load_relaxed(&thread->tid) != 0 && rsi_load_relaxed(&thread->slot) &&
            pthread_equal(rsi_load_relaxed(&thread->handle), handle))
            name_put(thread->slot, name);
    rsi_guard_unlock(&threads.guard);
    self->is_busy = was_busy;
}

RPI_EXPORT RSI_NOINLINE int pthread_setname_np(pthread_t thread, const char *name)
{
    struct rpi_thread *self = rpi_self ? rpi_self : rpi_thread_enter();
    rpi_real_find();
    int result = rpi_real.pthread_setname_np(thread, name);
    if (result == 0 && self && *rpi_recording_here)
        name_changed(self, thread, name);
    return result;
}

bool rpi_thread_begin(struct rpi_thread *self)
{
    if (self->is_busy || rsi_load_relaxed(&threads.is_aside) || !*rpi_recording_here)
        return false;
    int error = errno;
    self->is_busy = true; /* before a guard is taken: a signal handler that locks is not recorded */
    if (!self->slot) {
        if (!self->writer && (rsi_load_acquire(&rsi_file_head) || file_open())) /* with itself */
            self->writer = rsi_writer_take(false, self->tid);
        if (!self->writer || !slot_new(self))
            self->is_busy = false;
    }
    errno = error;
    return self->is_busy;
}

/* A page that the kernel empties in every child that has memory of its own; which of them is told of, fills it again. */
static bool here_put(void)
{
    if (!here && !(here = rsi_map(RSI_PAGE)))
        return false;
    *here = 1;
    rpi_recording_here = here;
    return madvise(here, RSI_PAGE, MADV_WIPEONFORK) == 0;
}

/* The file ends here: what is counted is all there is. */
void rpi_recording_confine(void)
{
    int error = errno;
    if (rpi_self_is_vforked() || rpi_recording_is_confined())
        return;
    rpi_recording_settle();
    rpi_epoll_member_restore();
    if (rpi_self)
        rpi_order_leave(rpi_self);
    bool is_recorded = here && *here && rsi_load_relaxed(&rsi_file_head) &&
                       !rsi_load_relaxed(&threads.is_aside);
    rsi_store_relaxed(&rpi_recording_confined, true);
    if (here)
        rsi_store_relaxed(here, 0u);
    if (is_recorded) {
        rsi_store_relaxed(&rsi_file_head->is_confined, UINT64_C(1));
        rsi_file_end();
    }
    errno = error;
}

/* The child has the calling thread alone, and none of the parent's recording. */
static void child(void)
{
    if (rpi_recording_is_confined())
        return;
    rpi_self = NULL;
    (void)here_put();
    threads.guard = 0;
    threads.is_refused = false;
    threads.free = threads.all;
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all) {
        thread->next_free = thread->next_all;
        thread->tid = 0;
        thread->wait = NULL; /* nor is the handler, if it is one that forks, in the parent's */
        thread->place = 0;
    }
    pthread_setspecific(threads.key, NULL);
    rpi_waiters_child();
    rpi_listener_child();
    rpi_fd_class_child();
    rpi_order_child();
    rpi_wait_ring_child();
    rpi_epoll_member_child();
    rpi_init_site_child();
    rsi_file_child();
    rsi_sites_child();
    rsi_writers_child();
}

__attribute__((constructor)) static void begin(void)
{
    rpi_real_find();
    rpi_tuning_setup();
    rpi_hold_setup();
    rpi_order_begin();
    rpi_wait_ring_setup();
    (void)rsi_sites_setup(rpi_stack_end);
    threads.by_tid = rsi_map(TIDS * sizeof *threads.by_tid);
    if (!threads.by_tid || !here_put() || pthread_key_create(&threads.key, leave) != 0 ||
        pthread_atfork(NULL, NULL, child) != 0 || !file_open())
        return;
    rpi_kernel_join_begin();
    rsi_store_release(&threads.is_ready, true); /* pairs with rpi_thread_enter */
}

__attribute__((destructor)) static void end(void)
{
    sigset_t before;
    if (!rsi_load_relaxed(&rsi_file_head) || rsi_load_relaxed(&threads.is_aside) ||
        !*rpi_recording_here)
        return;
    rsi_file_end();
    if (!rpi_wait_rings ||
        rpi_self_is_closed) /* exit in a handler, while this thread has the guard */
        return;
    block_and_lock(&before);
    for (struct rpi_thread *thread = threads.all; thread; thread = thread->next_all)
        if (rsi_load_relaxed(&thread->tid))
            rpi_wait_ring_tell(thread);
    unlock_and_unblock(&before);
}
