/* SPDX-License-Identifier: MIT */
/*
 * party.c - the program's kernel threads, the file that they are recorded in, and its beginning and end.
 *
 * A thread is known from its first lock on, so that others can ask where it got one; it has a slot in the file from
 * its first wait on. The file is made when the program begins, so that one that never waits is told from one that was
 * not recorded; a child of a fork makes its own at its first wait, for most run another program before that.
 */
#include "order.h"

#include "os/os.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define TIDS 65536u
#define NAME 16 /* of a thread, with its end */

__thread struct rsi_party *rsi_party_self;
__thread uint8_t rsi_party_is_closed;
volatile const uint32_t *rsi_party_here;
bool rsi_is_confined;

static uint32_t *here; /* that page, for those that write it */

static struct {
    uint32_t guard;
    struct rsi_party *free, *all;
    struct rsi_party **by_tid; /* one of those whose number ends alike; release by enter */
    pthread_key_t key;
    bool is_ready;   /* the constructor has run; release */
    bool is_aside;   /* librouse records: nothing more is */
    bool is_refused; /* the file cannot be made */
} parties;

/* librouse calls it, by name, before it makes a file of its own. */
RSI_EXPORT void rouse_preload_step_aside(void);
void rouse_preload_step_aside(void)
{
    rsi_store_relaxed(&parties.is_aside, true);
}

static struct rsi_party *take(void)
{
    rsi_guard_lock(&parties.guard);
    struct rsi_party *party = parties.free;
    if (party)
        parties.free = party->next_free;
    rsi_guard_unlock(&parties.guard);
    if (party) {
        struct rsi_party *all = party->next_all;
        struct rsi_holds *holds = party->holds;
        rsi_holds_clear(holds);
        memset(party, 0, sizeof *party);
        party->next_all = all;
        party->holds = holds;
        return party;
    }
    party = rsi_map(sizeof *party);
    if (!party)
        return NULL;
    rsi_guard_lock(&parties.guard);
    party->next_all = parties.all;
    parties.all = party;
    rsi_guard_unlock(&parties.guard);
    return party;
}

RSI_COLD struct rsi_party *rsi_party_enter(void)
{
    int error = errno;
    if (!rsi_load_acquire(&parties.is_ready) || rsi_party_is_closed || !*rsi_party_here)
        return NULL; /* is_ready pairs with begin */
    rsi_party_is_closed = 1;
    struct rsi_party *self = take();
    if (self && pthread_setspecific(parties.key, self) == 0) {
        rsi_store_relaxed(&self->thread, pthread_self());
        rsi_store_relaxed(&self->tid, (int32_t)rsi_gettid());
        self->dry_fd = -1;
        self->begin_tsc = rsi_tsc();
        rsi_store_release(&parties.by_tid[(uint32_t)self->tid % TIDS],
                          self); /* pairs with holder_site */
        rsi_party_self = self;
    }
    rsi_party_is_closed = 0;
    errno = error;
    return rsi_party_self;
}

static void leave(void *arg)
{
    struct rsi_party *self = arg;
    struct rsi_mark mark;
    rsi_party_is_closed = 1;
    rsi_party_self = NULL;
    if (!*rsi_party_here)
        return;
    if (self->object) /* out of a wait: cancelled at any instruction, or by pthread_exit in a handler */
        rsi_queue_leave(self, false, &mark);
    (void)rsi_queue_wake(self, (const void *)pthread_self(), RSI_WAKES_ALL,
                         NULL); /* who joins it */
    rsi_order_end(self);
    rsi_waits_tell(self);
    rsi_guard_lock(&parties.guard); /* whoever names it has done so, or sees that it has gone */
    rsi_store_relaxed(&self->tid, 0);
    rsi_guard_unlock(&parties.guard);
    if (self->slot && rsi_load_relaxed(&rsi_file_head)) {
        rsi_count(self->slot->ticks[RSI_IN_USR], rsi_tsc() - self->slot->run_tsc);
        rsi_writer_slot_end(self->writer, self->slot);
    }
    if (self->writer)
        rsi_writer_give(self->writer);
    rsi_guard_lock(&parties.guard);
    self->next_free = parties.free;
    parties.free = self;
    rsi_guard_unlock(&parties.guard);
}

/* A block may be another thread's by now: what is read of it is a guess that is looked at twice. */
static const struct rsi_party *find(int32_t tid)
{
    const struct rsi_party *party =
        rsi_load_acquire(&parties.by_tid[(uint32_t)tid % TIDS]); /* pairs with enter */
    return party && tid != 0 && rsi_load_relaxed(&party->tid) == tid ? party : NULL;
}

bool rsi_party_waits(int32_t tid)
{
    const struct rsi_party *party = find(tid);
    const struct rsi_store_thread *slot = party ? rsi_load_relaxed(&party->slot) : NULL;
    return slot && rsi_load_relaxed(&slot->doing) == RSI_DOES_WAIT;
}

const void *rsi_party_holder_site(int32_t tid, const void *lock)
{
    const struct rsi_party *holder = find(tid);
    if (!holder)
        return NULL;
    unsigned at = rsi_held_at(lock);
    const void *site = rsi_load_relaxed(&holder->held[at].site);
    return rsi_load_relaxed(&holder->held[at].lock) == lock ? site : NULL;
}

/* While the guard is held for long: a handler that came to it, or that ended the process, would wait for itself. */
static void block_and_lock(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, before);
    rsi_guard_lock(&parties.guard);
}

static void unlock_and_unblock(const sigset_t *before)
{
    rsi_guard_unlock(&parties.guard);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* What is called to make it may end a cancelled thread, which would leave the guard behind. */
static bool file_open(void)
{
    int cancel;
    sigset_t before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    block_and_lock(&before);
    if (!rsi_file_head && !parties.is_refused) {
        char reason[192]; /* told by `rouse run`: standard error is the program's */
        parties.is_refused = rsi_file_open(reason, sizeof reason) != 0;
        if (!parties.is_refused) {
            rsi_store_relaxed(&rsi_file_head->mode,
                              (uint32_t)(rsi_holds_are_on ? ROUSE_OBS_LOCKS : ROUSE_OBS_COUNTED));
            rsi_store_relaxed(&rsi_file_head->recorder, (uint32_t)RSI_STORE_PRELOAD);
            rsi_repair_note();
            rsi_init_note();
            rsi_order_note();
        }
    }
    unlock_and_unblock(&before);
    pthread_setcancelstate(cancel, NULL);
    return !parties.is_refused;
}

void rsi_party_settle(void)
{
    int error = errno;
    if (rsi_load_acquire(&parties.is_ready) && !rsi_party_is_closed && *rsi_party_here &&
        !rsi_load_relaxed(&parties.is_aside)) /* with begin */
        (void)file_open();
    errno = error;
}

static void name_put(struct rsi_store_thread *slot, const char name[NAME])
{
    for (size_t i = 0; i < NAME; i++)
        rsi_store_relaxed(&slot->name[i], name[i]);
}

/* The slot is its thread's for others, with the name of this moment: who changes it later finds the slot. */
static void slot_put(struct rsi_party *self, struct rsi_store_thread *slot)
{
    char name[NAME] = "";
    rsi_guard_lock(&parties.guard);
    prctl(PR_GET_NAME, name);
    name_put(slot, name);
    rsi_store_relaxed(&self->slot, slot);
    rsi_guard_unlock(&parties.guard);
}

static bool slot_new(struct rsi_party *self)
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
static void name_changed(struct rsi_party *self, pthread_t thread, const char *text)
{
    char name[NAME] = "";
    bool was_busy = self->is_busy;
    memcpy(name, text, strnlen(text, NAME - 1));
    self->is_busy = true; /* before a guard is taken, as in begin */
    rsi_guard_lock(&parties.guard);
    for (struct rsi_party *party = parties.all; party; party = party->next_all)
        if (rsi_load_relaxed(&party->tid) != 0 && rsi_load_relaxed(&party->slot) &&
            pthread_equal(rsi_load_relaxed(&party->thread), thread))
            name_put(party->slot, name);
    rsi_guard_unlock(&parties.guard);
    self->is_busy = was_busy;
}

RSI_EXPORT RSI_NOINLINE int pthread_setname_np(pthread_t thread, const char *name)
{
    struct rsi_party *self = rsi_party_self ? rsi_party_self : rsi_party_enter();
    rsi_real_find();
    int result = rsi_real.pthread_setname_np(thread, name);
    if (result == 0 && self && *rsi_party_here)
        name_changed(self, thread, name);
    return result;
}

bool rsi_party_begin(struct rsi_party *self)
{
    if (self->is_busy || rsi_load_relaxed(&parties.is_aside) || !*rsi_party_here)
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
    rsi_party_here = here;
    return madvise(here, RSI_PAGE, MADV_WIPEONFORK) == 0;
}

/* The file ends here: what is counted is all there is. */
void rsi_party_confine(void)
{
    int error = errno;
    if (rsi_party_is_vforked() || rsi_party_is_confined())
        return;
    rsi_party_settle();
    rsi_members_restore();
    if (rsi_party_self)
        rsi_order_leave(rsi_party_self);
    bool is_recorded = here && *here && rsi_load_relaxed(&rsi_file_head) &&
                       !rsi_load_relaxed(&parties.is_aside);
    rsi_store_relaxed(&rsi_is_confined, true);
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
    if (rsi_party_is_confined())
        return;
    rsi_party_self = NULL;
    (void)here_put();
    parties.guard = 0;
    parties.is_refused = false;
    parties.free = parties.all;
    for (struct rsi_party *party = parties.all; party; party = party->next_all) {
        party->next_free = party->next_all;
        party->tid = 0;
        party->wait = NULL; /* nor is the handler, if it is one that forks, in the parent's */
        party->place = 0;
    }
    pthread_setspecific(parties.key, NULL);
    rsi_queues_child();
    rsi_listeners_child();
    rsi_fds_child();
    rsi_order_child();
    rsi_waits_child();
    rsi_members_child();
    rsi_inits_child();
    rsi_file_child();
    rsi_sites_child();
    rsi_writers_child();
}

__attribute__((constructor)) static void begin(void)
{
    rsi_real_find();
    rsi_repair_begin();
    rsi_holds_begin();
    rsi_order_begin();
    rsi_waits_setup();
    (void)rsi_sites_setup(rsi_stack_end);
    parties.by_tid = rsi_map(TIDS * sizeof *parties.by_tid);
    if (!parties.by_tid || !here_put() || pthread_key_create(&parties.key, leave) != 0 ||
        pthread_atfork(NULL, NULL, child) != 0 || !file_open())
        return;
    rsi_join_begin();
    rsi_store_release(&parties.is_ready, true); /* pairs with rsi_party_enter */
}

__attribute__((destructor)) static void end(void)
{
    sigset_t before;
    if (!rsi_load_relaxed(&rsi_file_head) || rsi_load_relaxed(&parties.is_aside) ||
        !*rsi_party_here)
        return;
    rsi_file_end();
    if (!rsi_waits || rsi_party_is_closed) /* exit in a handler, while this thread has the guard */
        return;
    block_and_lock(&before);
    for (struct rsi_party *party = parties.all; party; party = party->next_all)
        if (rsi_load_relaxed(&party->tid))
            rsi_waits_tell(party);
    unlock_and_unblock(&before);
}
