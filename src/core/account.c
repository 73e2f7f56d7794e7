/* SPDX-License-Identifier: MIT */
/*
 * account.c - records threads' microstates and the ledger of their wake-ups.
 *
 * A switch is one moment: its time stamp ends the run of the thread that leaves and begins the run of the
 * next one. A wake-up is another moment. So a wait costs two time stamps, which are most of the cost of
 * recording.
 *
 *     leave   since_tsc = now, and what it waits for; the run since run_tsc is USR
 *     wake    wake_tsc, wake_site, waker_id, verdict; written by the winner of the claim
 *     enter   run_tsc = now; since_tsc..wake_tsc was the wait, wake_tsc..now is LAT; both go to the ledger
 *
 * A wait may end before its thread has left (woken before asleep). Then wake_tsc < since_tsc and the wait has
 * length 0. A wake-up was recorded if wake_tsc > run_tsc, the start of the run before it. If a verdict later
 * turns out to be different, it is subtracted from one count and added to another.
 *
 * Other events (calls, herds, steals, late timers) are plain counts, at the end of this file. contest.c
 * counts contended locks, hold.c how long locks are held.
 */
#include "core/account.h"

#include "core/core.h"
#include "obs/site.h"
#include "obs/trace.h"

#include <errno.h>
#include <rouse/sync.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t mutex;
    bool is_refused;
} opening = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* Offset of the name in an object of the kind. 0: it has none. */
static const uint16_t name_offsets[ROUSE_WAIT_KINDS] = {
    [ROUSE_WAIT_MUTEX] = offsetof(struct rouse_mutex, name),
    [ROUSE_WAIT_READ_LOCK] = offsetof(struct rouse_rwlock, name),
    [ROUSE_WAIT_WRITE_LOCK] = offsetof(struct rouse_rwlock, name),
    [ROUSE_WAIT_COND] = offsetof(struct rouse_cond, name),
    [ROUSE_WAIT_SEM] = offsetof(struct rouse_sem, name),
};

/* Create the file when the first thread has something to record. False: that failed, and recording is off. */
static RSI_COLD bool file_open(void)
{
    pthread_mutex_lock(&opening.mutex);
    if (!rsi_load_relaxed(&rsi_file_head) && !opening.is_refused) {
        char reason[192];
        const char *asked = secure_getenv("ROUSE_OBS");
        rsi_file_alone();
        int error = rsi_file_open(reason, sizeof reason);
        opening.is_refused = error != 0;
        /* Unless recording was requested, only a folder that somebody else has taken is reported. */
        if (error == -EEXIST || (error && asked && *asked))
            rsi_report("nothing is recorded: %s", reason);
        else if (!error && *reason)
            rsi_report("%s", reason);
        if (!opening.is_refused) {
            rsi_store_relaxed(&rsi_file_head->mode, rsi_load_relaxed(&rsi_obs_mode));
            atexit(rsi_file_end);
        }
    }
    if (opening.is_refused)
        rsi_store_relaxed(&rsi_obs_mode, (uint32_t)ROUSE_OBS_OFF);
    pthread_mutex_unlock(&opening.mutex);
    return !opening.is_refused;
}

static RSI_COLD struct rsi_writer *writer_new(struct rsi_exec *exec)
{
    if (exec->is_writerless || !file_open())
        return NULL;
    struct rsi_writer *writer = rsi_writer_take(exec->worker != NULL, (int32_t)rsi_gettid());
    if (writer && exec->worker) {
        rsi_store_relaxed(&writer->shared->worker, exec->worker->index);
        rsi_store_relaxed(&writer->shared->cluster, (uint32_t)exec->home);
    }
    exec->writer = writer;
    exec->is_writerless = !writer;
    return writer;
}

RSI_INLINE struct rsi_writer *writer_of(struct rsi_exec *exec)
{
    return rsi_likely(exec->writer != NULL) ? exec->writer : writer_new(exec);
}

struct rsi_writer *rsi_account_writer(void)
{
    return writer_of(rsi_exec_self());
}

static void name_copy(struct rsi_store_thread *slot, const struct rouse_thread *t)
{
    char name[sizeof slot->name] = ""; /* names that are equal are so in all bytes */
    rouse_thread_name(t, name, sizeof name);
    for (size_t i = 0; i < sizeof name; i++)
        rsi_store_relaxed(&slot->name[i], name[i]);
}

/* t runs, or is about to, and has no slot yet: give it one. */
static RSI_NOINLINE struct rsi_store_thread *slot_new(struct rsi_writer *writer,
                                                      struct rouse_thread *t, uint64_t now)
{
    struct rsi_store_thread *slot = t->waiter.is_slotless ? NULL : rsi_writer_slot(writer);
    if (!slot) {
        rsi_count(writer->shared->lost_threads, !t->waiter.is_slotless);
        t->waiter.is_slotless = true;
        return NULL;
    }
    uint64_t born = t->waiter.record.kind == ROUSE_WAIT_NONE && t->waiter.record.object
                        ? (uintptr_t)t->waiter.record.object
                        : now;
    if (t->waiter.origin != RSI_ORIGIN_USER && born == now) {
        struct rsi_cpu_time spent = rsi_cpu_time_begin(t->tid);
        rsi_writer_begin(writer, now, &spent);
    }
    rsi_slot_change(slot);
    rsi_store_relaxed(&slot->id, t->id);
    rsi_store_relaxed(&slot->begin_tsc, born);
    rsi_store_relaxed(&slot->since_tsc, born);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_store_relaxed(&slot->origin, (uint16_t)t->waiter.origin);
    rsi_store_relaxed(&slot->tid, t->waiter.origin == RSI_ORIGIN_USER ? 0 : t->tid);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_QUEUE);
    rsi_slot_changed(slot);
    rsi_store_release(&t->waiter.record.slot, slot); /* readers of t see it complete */
    rsi_test_delay();
    rsi_fence_light(); /* pairs with the heavy fence in rsi_account_name */
    if (rsi_load_relaxed(&t->waiter.has_cold))
        name_copy(slot, t);
    return slot;
}

RSI_INLINE struct rsi_wake_key key_of(const struct rsi_store_thread *slot)
{
    bool has_object = rsi_wait_classes[slot->kind].has_object;
    return (struct rsi_wake_key){ slot->wait_site, rsi_load_relaxed(&slot->wake_site),
                                  has_object ? slot->object : 0, slot->kind, RSI_NAME_ANY };
}

/* The address of the pointer to the name of the key's object. */
RSI_INLINE const char *const *name_at(const struct rsi_wake_key *key)
{
    uint16_t at = name_offsets[key->kind];
    return at ? (const char *const *)(uintptr_t)(key->object + at) : NULL;
}

RSI_INLINE bool is_useless(uint32_t verdict)
{
    return verdict == ROUSE_VERDICT_LOST_RACE || verdict == ROUSE_VERDICT_FALSE ||
           verdict == ROUSE_VERDICT_EARLY;
}

/* The entry of slot's last wait, or NULL. Not inlined, so that the key's address is taken only here. */
static RSI_NOINLINE struct rsi_store_wake *wake_find(struct rsi_writer *writer,
                                                     const struct rsi_store_thread *slot)
{
    struct rsi_wake_key key = key_of(slot);
    return rsi_writer_wake(writer, &key, name_at(&key));
}

static RSI_COLD void waste(struct rsi_writer *writer, struct rsi_store_thread *slot, uint64_t ticks)
{
    struct rsi_store_wake *wake = wake_find(writer, slot);
    if (wake)
        rsi_count(wake->waste_ticks, ticks);
}

/* self was running and leaves its CPU. */
RSI_INLINE void leave(struct rsi_writer *writer, struct rouse_thread *self, enum rsi_leave why,
                      uint64_t now)
{
    struct rsi_store_thread *slot = self->waiter.record.slot;
    if (rsi_unlikely(!slot) && !(slot = slot_new(writer, self, now))) {
        rsi_count(writer->shared->lost_wakes, why == RSI_LEAVES_WAITING);
        return;
    }
    uint64_t ran = now - slot->run_tsc, site = 0;
    if (rsi_likely(why == RSI_LEAVES_WAITING))
        site = rsi_site_of(writer, self->waiter.record.wait_site);
    if (rsi_unlikely(is_useless(rsi_load_relaxed(&slot->verdict))))
        waste(writer, slot, ran);
    rsi_slot_change(slot);
    rsi_count(slot->ticks[RSI_IN_USR], ran);
    rsi_store_relaxed(&slot->since_tsc, now);
    if (rsi_likely(why == RSI_LEAVES_WAITING)) {
        rsi_store_relaxed(&slot->kind, (uint16_t)self->waiter.record.kind);
        rsi_store_relaxed(&slot->object, (uint64_t)(uintptr_t)self->waiter.record.object);
        rsi_store_relaxed(&slot->wait_site, site);
        rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_WAIT);
    } else {
        rsi_store_relaxed(&slot->yields, slot->yields + 1);
        rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_QUEUE);
    }
    rsi_slot_changed(slot);
}

/* The wait of slot is over and its thread is about to run. */
RSI_INLINE void wait_ended(struct rsi_writer *writer, struct rsi_store_thread *slot, uint64_t now)
{
    uint64_t since = slot->since_tsc, woken = rsi_load_relaxed(&slot->wake_tsc);
    uint32_t verdict = woken > slot->run_tsc ? rsi_load_relaxed(&slot->verdict)
                                             : ROUSE_VERDICT_NONE;
    woken = woken < since ? since : woken > now ? now : woken;
    uint64_t waited = woken - since, late = now - woken;
    struct rsi_wake_key key = key_of(slot);
    struct rsi_store_wake *wake = rsi_writer_wake_there(writer, &key);
    if (rsi_unlikely(!wake))
        wake = wake_find(writer, slot);
    rsi_count(slot->ticks[rsi_wait_classes[key.kind].micro], waited);
    rsi_count(slot->ticks[RSI_IN_LAT], late);
    rsi_count(slot->waits, 1);
    if (rsi_unlikely(!wake)) {
        rsi_count(writer->shared->lost_wakes, 1);
        return;
    }
    rsi_wake_count(wake, verdict, waited, late);
}

/* t is about to run. */
RSI_INLINE void enter(struct rsi_writer *writer, struct rouse_thread *t, uint64_t now)
{
    struct rsi_store_thread *slot = t->waiter.record.slot;
    rsi_count(writer->shared->switches, 1);
    if (rsi_unlikely(!slot) && !(slot = slot_new(writer, t, now)))
        return;
    rsi_slot_change(slot);
    if (rsi_likely(slot->doing == RSI_DOES_WAIT))
        wait_ended(writer, slot, now);
    else if (slot->doing == RSI_DOES_QUEUE)
        rsi_count(slot->ticks[RSI_IN_LAT], now - slot->since_tsc);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_store_relaxed(&slot->worker, writer->index);
    rsi_slot_changed(slot);
}

RSI_NOINLINE void rsi_account_switch(struct rsi_worker *w, struct rouse_thread *self,
                                     struct rouse_thread *to, enum rsi_leave why)
{
    struct rsi_writer *writer = writer_of(&w->exec);
    if (rsi_unlikely(!writer))
        return;
    uint64_t now = rsi_tsc();
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, self, to, why, now);
    if (why != RSI_LEAVES_ENDED)
        leave(writer, self, why, now);
    if (rsi_likely(to != NULL)) {
        enter(writer, to, now);
    } else {
        rsi_store_relaxed(&writer->shared->idle_since_tsc, now);
        rsi_count(writer->shared->idle_count, 1);
    }
}

void rsi_account_run(struct rsi_worker *w, struct rouse_thread *t)
{
    struct rsi_writer *writer = writer_of(&w->exec);
    if (!writer)
        return;
    uint64_t now = rsi_tsc(), since = writer->shared->idle_since_tsc;
    if (since) {
        rsi_count(writer->shared->idle_ticks, now - since);
        rsi_store_relaxed(&writer->shared->idle_since_tsc, UINT64_C(0));
    }
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, NULL, t, RSI_LEAVES_ENDED, now);
    enter(writer, t, now);
}

void rsi_account_new(struct rouse_thread *t)
{
    const struct rsi_exec *exec = rsi_exec_self();
    uint64_t now = rsi_tsc();
    t->waiter.record.object = (const void *)(uintptr_t)now; /* see slot_new */
    if (rsi_trace_is_on() && exec->writer)
        rsi_trace_new(exec->writer, t, exec->current->id, now);
}

void rsi_account_sleep(struct rouse_thread *self)
{
    struct rsi_writer *writer = writer_of(&self->exec);
    if (!writer)
        return;
    uint64_t now = rsi_tsc();
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, self, NULL, RSI_LEAVES_WAITING, now);
    leave(writer, self, RSI_LEAVES_WAITING, now);
}

void rsi_account_entered(struct rouse_thread *self)
{
    struct rsi_writer *writer = writer_of(&self->exec);
    if (!writer)
        return;
    uint64_t now = rsi_tsc();
    if (rsi_unlikely(rsi_load_relaxed(&rsi_file_head->trace_until_ns) != 0))
        rsi_trace_look(rsi_now_ns()); /* there may be no worker to do it */
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, NULL, self, RSI_LEAVES_ENDED, now);
    if (rsi_trace_is_on() && !self->waiter.record.slot)
        rsi_trace_new(writer, self, 0, now);
    enter(writer, self, now);
}

RSI_INLINE uint32_t verdict_of(int result)
{
    return result == -ETIMEDOUT   ? ROUSE_VERDICT_TIMEOUT
           : result == -ECANCELED ? ROUSE_VERDICT_CANCELLED
                                  : ROUSE_VERDICT_USEFUL;
}

RSI_INLINE void woken(struct rsi_store_thread *slot, uint64_t waker_id, uint64_t wake_site,
                      uint32_t verdict)
{
    rsi_store_relaxed(&slot->waker_id, waker_id);
    rsi_store_relaxed(&slot->wake_site, wake_site);
    rsi_store_relaxed(&slot->verdict, verdict);
    /* A reader that sees it also sees the three above. */
    rsi_store_release(&slot->wake_tsc, rsi_tsc());
}

/* If sites are call stacks, or events are traced. */
static RSI_COLD struct rouse_thread *wake_slow(struct rouse_thread *t,
                                               struct rsi_store_thread *slot, uint64_t waker_id,
                                               int result, const void *site)
{
    struct rsi_writer *writer = rsi_exec_self()->writer;
    uint64_t wake_site = rsi_site_of(writer, site);
    if (rsi_trace_is_on() && writer) /* otherwise the thread's RUN event shows it */
        rsi_trace_wake(writer, t, verdict_of(result), wake_site, waker_id);
    woken(slot, waker_id, wake_site, verdict_of(result));
    return t;
}

struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site)
{
    /* t may be about to sleep and just be getting its slot. Acquire: pairs with slot_new. */
    struct rsi_store_thread *slot = rsi_load_acquire(&t->waiter.record.slot);
    if (rsi_unlikely(!slot))
        return t;
    const struct rouse_thread *waker = site ? rsi_exec_self()->current : NULL;
    uint64_t waker_id = waker ? waker->id : 0;
    if (rsi_unlikely(rsi_load_relaxed(&rsi_site_depth) != 1) || rsi_trace_is_on())
        return wake_slow(t, slot, waker_id, result, site);
    woken(slot, waker_id, (uintptr_t)site, verdict_of(result));
    return t;
}

/* One wake-up of the key was counted under before and now belongs under verdict. */
static void recount(struct rsi_writer *writer, const struct rsi_wake_key *key, uint32_t before,
                    uint32_t verdict)
{
    struct rsi_store_wake *wake = rsi_writer_wake(writer, key, name_at(key));
    if (!wake)
        return;
    rsi_count(wake->count[before], -UINT64_C(1));
    rsi_count(wake->count[verdict], 1);
}

void rsi_park_verdict(struct rouse_thread *self, enum rouse_verdict verdict)
{
    struct rsi_past past;
    if (rsi_park_past(self, &past))
        rsi_park_past_verdict(self, &past, verdict);
}

bool rsi_park_past(struct rouse_thread *self, struct rsi_past *past)
{
    const struct rsi_store_thread *slot = self->waiter.record.slot;
    if (rsi_likely(rsi_load_relaxed(&rsi_obs_mode) == ROUSE_OBS_OFF) || !slot)
        return false;
    *past = (struct rsi_past){ slot->wait_site, rsi_load_relaxed(&slot->wake_site),
                               slot->object,    slot->waits,
                               slot->kind,      rsi_load_relaxed(&slot->verdict) };
    return true;
}

void rsi_park_past_verdict(struct rouse_thread *self, const struct rsi_past *past,
                           enum rouse_verdict verdict)
{
    struct rsi_store_thread *slot = self->waiter.record.slot;
    struct rsi_writer *writer = writer_of(rsi_exec_self());
    if (rsi_load_relaxed(&rsi_obs_mode) == ROUSE_OBS_OFF || !slot || !writer ||
        past->verdict == verdict)
        return;
    struct rsi_wake_key key = { past->wait_site, past->wake_site,
                                rsi_wait_classes[past->kind].has_object ? past->object : 0,
                                past->kind, RSI_NAME_ANY };
    recount(writer, &key, past->verdict, verdict);
    if (rsi_trace_is_on())
        rsi_trace_verdict(writer, self, past->kind, verdict);
    if (is_useless(verdict))
        rsi_count(slot->useless, 1);
    if (slot->waits == past->waits) /* there was no other wait since */
        rsi_store_relaxed(&slot->verdict, (uint32_t)verdict);
}

void rsi_account_herd(size_t count)
{
    struct rsi_writer *writer = rsi_exec_self()->writer;
    if (writer)
        rsi_count(writer->shared->herds[rsi_log2(count, RSI_STORE_HERDS - 1)], 1);
}

void rsi_account_call_slow(enum rouse_wait_kind kind, long result)
{
    const struct rsi_exec *exec = rsi_exec_self();
    struct rsi_writer *writer = rsi_account_writer();
    struct rsi_store_thread *slot = exec->current ? exec->current->waiter.record.slot : NULL;
    if (writer)
        rsi_count(writer->shared->calls[kind], 1);
    if (slot && kind == ROUSE_WAIT_ACCEPT && result >= 0)
        rsi_count(slot->accepted, 1);
}

void rsi_account_unheard_slow(bool is_broadcast)
{
    (void)rsi_self(); /* a thread that only signals may not have counters yet */
    struct rsi_writer *writer = rsi_account_writer();
    if (writer && is_broadcast)
        rsi_count(writer->shared->broadcasts_unheard, 1);
    else if (writer)
        rsi_count(writer->shared->signals_unheard, 1);
}

void rsi_account_steal(struct rsi_worker *w, unsigned count)
{
    struct rsi_writer *writer = w->exec.writer;
    if (!writer)
        return;
    rsi_count(writer->shared->steals, 1);
    rsi_count(writer->shared->stolen, count);
    if (rsi_trace_is_on())
        rsi_trace_steal(writer, count);
}

void rsi_account_lateness(uint64_t late_ns)
{
    /*
     * The calling thread's writer, not that of the worker that owns the timer: the watcher may be the caller. The
     * queue lock is held, so no writer is made here.
     */
    struct rsi_writer *writer = rsi_exec_self()->writer;
    if (!writer)
        return;
    rsi_count(writer->shared->lateness[rsi_log2(late_ns, RSI_STORE_LATENESS - 1)], 1);
    rsi_count(writer->shared->lateness_ns, late_ns);
    rsi_count_most(writer->shared->lateness_most_ns, late_ns);
}

/*
 * Any thread may call this. The caller wrote the name before it looks for the slot here; slot_new writes the
 * slot before it looks for a name. The fences make one of the two see the other, so no name is missed. t may
 * end in the meantime and its slot may go to another thread. That thread has no name yet, or loses its own
 * name to this one if this happens between the check of the id and the copy. A lock would prevent that, at
 * the cost of one lock for each thread that ends.
 */
void rsi_account_name(struct rouse_thread *t)
{
    /* Pairs with slot_new. */
    struct rsi_store_thread *slot = rsi_load_acquire(&t->waiter.record.slot);
    if (!slot && rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF) {
        rsi_fence_heavy();
        slot = rsi_load_acquire(&t->waiter.record.slot); /* pairs with slot_new */
    }
    if (slot && rsi_load_relaxed(&slot->id) == t->id)
        name_copy(slot, t);
}

void rsi_account_thread_end(struct rouse_thread *self)
{
    struct rsi_store_thread *slot = self->waiter.record.slot;
    struct rsi_writer *writer = rsi_exec_self()->writer;
    if (!slot)
        return;
    rsi_store_relaxed(&self->waiter.record.slot, NULL);
    if (rsi_trace_is_on() && writer)
        rsi_trace_end(writer, self);
    uint64_t now = rsi_tsc();
    if (slot->doing == RSI_DOES_RUN)
        rsi_count(slot->ticks[RSI_IN_USR], now - slot->run_tsc);
    if (writer) /* otherwise the slot is lost: recording was switched off and this kernel thread never had a writer */
        rsi_writer_slot_end(writer, slot, now);
}

static void exec_forget(struct rsi_exec *exec)
{
    exec->writer = NULL;
    exec->is_writerless = false;
}

void rsi_account_exec_end(struct rsi_exec *exec)
{
    if (exec->writer)
        rsi_writer_give(exec->writer);
    exec_forget(exec);
}

void rsi_account_child(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    pthread_mutex_init(&opening.mutex, NULL);
    for (uint32_t i = 0; i < RSI_WORKERS_MAX && rsi_rt.workers[i]; i++)
        exec_forget(&rsi_rt.workers[i]->exec);
    if (exec != &rsi_exec_none)
        exec_forget(exec);
    if (exec->current) {
        exec->current->waiter.record.slot = NULL;
        exec->current->waiter.is_slotless = false;
    }
    rsi_file_child();
    rsi_writers_child();
    rsi_holds_child();
    rsi_trace_child();
    rsi_sites_child();
}
