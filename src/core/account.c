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
 * length 0. A wake-up was recorded if `woken` in the wait record is the number of the wait. If a verdict later
 * turns out to be different, it is subtracted from one count and added to another.
 *
 * Workers with very short turns time only some of their switches (sampling.h). The other stamps are the worker's last one, which
 * is up to about 20 us old. Readers see when a thread began to wait with that error. Such stamps add to
 * no sum of times.
 *
 * Other events (calls, herds, steals, late timers) are plain counts, at the end of this file. contest.c
 * counts contended locks, hold.c how long locks are held.
 */
#include "core/account.h"

#include "core/core.h"
#include "core/sampling.h"
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

/* The rate of the time-stamp counter is known well enough, so long after recording began. */
#define RATE_KNOWN_NS 1000000u
#define COST_KNOWN_NS 1000000000u /* most between two measurements of the cost of a time stamp */

/* When the next measurement is due. Relaxed: any worker; two that measure at once do no harm. */
static uint64_t cost_due_ns;

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
            rsi_trace_publish_mode();
            atexit(rsi_file_end);
        }
    }
    if (opening.is_refused)
        rsi_trace_set_mode(ROUSE_OBS_OFF);
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
    uint32_t seq = rsi_slot_change(slot);
    rsi_store_relaxed(&slot->id, t->id);
    rsi_store_relaxed(&slot->begin_tsc, born);
    rsi_store_relaxed(&slot->since_tsc, born);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_store_relaxed(&slot->origin, (uint8_t)t->waiter.origin);
    rsi_store_relaxed(&slot->tid, t->waiter.origin == RSI_ORIGIN_USER ? 0 : t->tid);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_QUEUE);
    rsi_slot_changed(slot, seq);
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

static RSI_COLD void variance_add(uint64_t *bits, double more)
{
    double sum;
    uint64_t was = rsi_load_relaxed(bits);
    memcpy(&sum, &was, sizeof sum);
    sum += more;
    memcpy(&was, &sum, sizeof was);
    rsi_store_relaxed(bits, was);
}

/* The addend of a time to its sum: without the stamp that only chosen ones contain, and for all that it stands for. */
RSI_INLINE uint64_t weighed(uint64_t ticks, uint32_t weight)
{
    if (rsi_likely(weight == 1))
        return ticks;
    uint64_t cost = rsi_load_relaxed(&rsi_sampling_cost);
    return ticks > cost ? weight * (ticks - cost) : 0;
}

RSI_INLINE void ran(struct rsi_writer *writer, struct rsi_store_thread *slot, uint64_t ticks)
{
    if (rsi_unlikely(is_useless(rsi_load_relaxed(&slot->verdict))))
        waste(writer, slot, ticks);
    rsi_count(slot->ticks[RSI_IN_USR], ticks);
}

/*
 * self was running and leaves its CPU. ran_weight: of its turn, 0 if that was not timed. weight: of what begins now.
 */
RSI_INLINE void leave(struct rsi_writer *writer, struct rouse_thread *self, enum rsi_leave why,
                      uint64_t now, uint32_t ran_weight, uint32_t weight)
{
    struct rsi_store_thread *slot = self->waiter.record.slot;
    if (rsi_unlikely(!slot) && !(slot = slot_new(writer, self, now))) {
        rsi_count(writer->shared->lost_wakes, why == RSI_LEAVES_WAITING);
        return;
    }
    uint64_t site = 0;
    if (rsi_likely(why == RSI_LEAVES_WAITING))
        site = rsi_site_of(writer, self->waiter.record.wait_site);
    uint32_t seq = rsi_slot_change(slot);
    if (ran_weight != 0)
        ran(writer, slot, weighed(now - slot->run_tsc, ran_weight));
    rsi_store_relaxed(&slot->since_tsc, now);
    rsi_store_relaxed(&self->waiter.record.weight, (uint8_t)weight);
    if (rsi_likely(why == RSI_LEAVES_WAITING)) {
        rsi_store_relaxed(&slot->kind, (uint16_t)self->waiter.record.kind);
        rsi_store_relaxed(&slot->object, (uint64_t)(uintptr_t)self->waiter.record.object);
        rsi_store_relaxed(&slot->wait_site, site);
        rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_WAIT);
    } else {
        rsi_store_relaxed(&slot->yields, slot->yields + 1);
        rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_QUEUE);
    }
    rsi_slot_changed(slot, seq);
}

/*
 * Add the times of a wait that stands for `weight` waits. Chosen with the chance 1 / weight, such an addend has the variance
 * addend^2 (1 - 1 / weight).
 */
static RSI_COLD void wait_sampled(struct rsi_store_wake *wake, uint64_t waited, uint64_t late,
                                  uint32_t weight)
{
    double part = 1 - 1.0 / weight;
    rsi_count(wake->sampled, 1);
    rsi_count(wake->wait_ticks, waited);
    rsi_count_most(wake->wait_most, waited / weight);
    rsi_count(wake->late_ticks, late);
    rsi_count_most(wake->late_most, late / weight);
    variance_add(&wake->wait_variance, part * (double)waited * (double)waited);
    variance_add(&wake->late_variance, part * (double)late * (double)late);
}

/* The low bits of the number of t's present or last wait. */
RSI_INLINE uint8_t number_of(const struct rouse_thread *t)
{
    return (uint8_t)(rsi_load_relaxed(&t->waiter.claim) >> 2);
}

/* The wait of t is over, and it is about to run. weight: of its times; 0: they are not timed. */
RSI_INLINE void wait_ended(struct rsi_writer *writer, struct rouse_thread *t,
                           struct rsi_store_thread *slot, uint64_t now, uint32_t weight)
{
    uint8_t number = number_of(t);
    uint32_t verdict = t->waiter.record.woken == number ? rsi_load_relaxed(&slot->verdict)
                                                        : ROUSE_VERDICT_NONE;
    t->waiter.record.counted = number;
    struct rsi_wake_key key = key_of(slot);
    struct rsi_store_wake *wake = rsi_writer_wake_there(writer, &key);
    if (rsi_unlikely(!wake))
        wake = wake_find(writer, slot);
    rsi_count(slot->waits, 1);
    if (rsi_unlikely(!wake))
        rsi_count(writer->shared->lost_wakes, 1);
    else
        rsi_count(wake->count[verdict], 1);
    if (weight == 0)
        return;
    uint64_t since = slot->since_tsc, woken = rsi_load_relaxed(&slot->wake_tsc);
    woken = woken < since || verdict == ROUSE_VERDICT_NONE ? since : woken > now ? now : woken;
    uint64_t waited = weighed(woken - since, weight), late = weighed(now - woken, weight);
    rsi_count(slot->ticks[rsi_wait_classes[key.kind].micro], waited);
    rsi_count(slot->ticks[RSI_IN_LAT], late);
    if (rsi_likely(wake && weight == 1))
        rsi_wake_time(wake, waited, late);
    else if (wake)
        wait_sampled(wake, waited, late, weight);
}

/* t, whose slot this is, is about to run. weight: of the time since it left its worker. */
RSI_INLINE void run(struct rsi_writer *writer, struct rouse_thread *t,
                    struct rsi_store_thread *slot, uint64_t now, uint32_t weight)
{
    rsi_count(writer->shared->switches, 1);
    uint32_t seq = rsi_slot_change(slot);
    if (slot->doing == RSI_DOES_WAIT)
        wait_ended(writer, t, slot, now, weight);
    else if (weight != 0 && slot->doing == RSI_DOES_QUEUE && now > slot->since_tsc)
        rsi_count(slot->ticks[RSI_IN_LAT], weighed(now - slot->since_tsc, weight));
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_store_relaxed(&slot->worker, writer->index);
    rsi_slot_changed(slot, seq);
}

/* Of the worker that t left last. */
RSI_INLINE const struct rsi_sampling *sampling_of(const struct rouse_thread *t)
{
    return &rsi_rt.workers[rsi_load_relaxed(&t->waiter.worker_index)]->sampling;
}

/* t is about to run. now is exact if it has a slot. */
RSI_INLINE void enter(struct rsi_writer *writer, struct rouse_thread *t, uint64_t now)
{
    struct rsi_store_thread *slot = t->waiter.record.slot;
    if (rsi_unlikely(!slot) && !(slot = slot_new(writer, t, now))) {
        rsi_count(writer->shared->switches, 1);
        return;
    }
    uint32_t weight = rsi_load_relaxed(&t->waiter.record.weight);
    if (weight != 1 && rsi_sampling_is_long(slot->since_tsc, sampling_of(t), now))
        weight = 1;
    run(writer, t, slot, now, weight);
}

/* Whether w shall go on with a sample. */
RSI_INLINE void check(struct rsi_worker *w, uint64_t now)
{
    if (w->sampling.left == 0)
        return;
    if (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_COUNTED)
        rsi_sampling_stop(&w->sampling);
    else
        rsi_sampling_check(&w->sampling, w->turns, now);
}

/* The weight of the turn that ends now, and the time. */
RSI_INLINE uint32_t turn_end(struct rsi_sampling *s, const struct rsi_store_thread *slot,
                             uint64_t *now)
{
    bool is_noticed = s->turn_weight != 0 || s->turn_era != rsi_load_relaxed(&rsi_sampling_era);
    *now = rsi_sampling_stamp(s);
    uint32_t weight = s->turn_weight;
    if (weight != 1 && is_noticed && slot && slot->run_tsc <= s->old_tsc)
        weight = 1;
    return weight;
}

/* A switch that needs no time stamp: nothing is chosen that begins or ends now, and nothing is long that ends. */
RSI_INLINE bool is_untimed(const struct rsi_sampling *s, const struct rouse_thread *to)
{
    const struct rsi_store_thread *slot = to ? to->waiter.record.slot : NULL;
    return to && rsi_load_relaxed(&to->waiter.record.weight) == 0 && rsi_sampling_is_short(s) &&
           (!slot || slot->since_tsc > s->old_tsc);
}

/* A time of t that was chosen begins only now, that is, without what it took to record its begin. */
static void begin_now(struct rouse_thread *t, bool is_turn, struct rsi_sampling *s)
{
    struct rsi_store_thread *slot = t->waiter.record.slot;
    if (!slot)
        return;
    uint32_t seq = rsi_slot_change(slot);
    rsi_store_relaxed(is_turn ? &slot->run_tsc : &slot->since_tsc, rsi_sampling_stamp(s));
    rsi_slot_changed(slot, seq);
}

static RSI_NOINLINE void switch_timed(struct rsi_worker *w, struct rouse_thread *self,
                                      struct rouse_thread *to, enum rsi_leave why)
{
    struct rsi_writer *writer = writer_of(&w->exec);
    if (rsi_unlikely(!writer))
        return;
    uint64_t now;
    uint32_t ran_weight = turn_end(&w->sampling, self->waiter.record.slot, &now);
    check(w, now);
    struct rsi_sampling_chosen chosen = rsi_sampling_toss(&w->sampling);
    rsi_sampling_turn(&w->sampling, chosen.turn);
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, self, to, why, now);
    if (why != RSI_LEAVES_ENDED)
        leave(writer, self, why, now, ran_weight, chosen.wait);
    if (rsi_likely(to != NULL)) {
        enter(writer, to, now);
    } else {
        rsi_store_relaxed(&writer->shared->idle_since_tsc, now);
        rsi_count(writer->shared->idle_count, 1);
    }
    if (chosen.turn > 1 && to)
        begin_now(to, true, &w->sampling);
    else if (chosen.wait > 1 && why != RSI_LEAVES_ENDED)
        begin_now(self, false, &w->sampling);
}

/* `to` has no slot yet, or there was no room for it. */
static RSI_NOINLINE void enter_new(struct rsi_writer *writer, struct rouse_thread *to, uint64_t now)
{
    enter(writer, to, now);
}

/*
 * An untimed switch between two threads of which one yields and the other has yielded: no wait begins or ends. False: it is
 * another one.
 */
RSI_INLINE bool yielded(const struct rsi_writer *writer, struct rouse_thread *self,
                        const struct rouse_thread *to, uint64_t now)
{
    struct rsi_store_thread *from = self->waiter.record.slot, *slot = to->waiter.record.slot;
    if (rsi_unlikely(!from || !slot || slot->doing != RSI_DOES_QUEUE))
        return false;
    uint32_t seq = rsi_slot_change(from);
    rsi_store_relaxed(&from->since_tsc, now);
    rsi_store_relaxed(&from->yields, from->yields + 1);
    rsi_store_relaxed(&from->doing, (uint16_t)RSI_DOES_QUEUE);
    rsi_slot_changed(from, seq);
    rsi_store_relaxed(&self->waiter.record.weight, (uint8_t)0);
    rsi_count(writer->shared->switches, 1);
    seq = rsi_slot_change(slot);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_store_relaxed(&slot->worker, writer->index);
    rsi_slot_changed(slot, seq);
    return true;
}

static RSI_NOINLINE void switch_untimed(struct rsi_worker *w, struct rouse_thread *self,
                                        struct rouse_thread *to, enum rsi_leave why)
{
    struct rsi_writer *writer = w->exec.writer;
    uint64_t now = rsi_sampling_about_now(&w->sampling);
    if (why != RSI_LEAVES_ENDED)
        leave(writer, self, why, now, 0, 0);
    struct rsi_store_thread *slot = to->waiter.record.slot;
    if (rsi_likely(slot != NULL))
        run(writer, to, slot, now, 0);
    else
        enter_new(writer, to, now);
}

RSI_NOINLINE void rsi_account_switch(struct rsi_worker *w, struct rouse_thread *self,
                                     struct rouse_thread *to, enum rsi_leave why)
{
    struct rsi_sampling *s = &w->sampling;
    const struct rsi_writer *writer = w->exec.writer;
    if (s->left <= 1 || !writer || !is_untimed(s, to)) {
        switch_timed(w, self, to, why);
        return;
    }
    s->left--;
    if (why != RSI_LEAVES_QUEUED || !yielded(writer, self, to, rsi_sampling_about_now(s)))
        switch_untimed(w, self, to, why);
}

void rsi_account_run(struct rsi_worker *w, struct rouse_thread *t)
{
    struct rsi_writer *writer = writer_of(&w->exec);
    if (!writer)
        return;
    uint64_t now = rsi_sampling_wake(&w->sampling), since = writer->shared->idle_since_tsc;
    check(w, now);
    rsi_sampling_turn(&w->sampling, rsi_sampling_toss(&w->sampling).turn);
    if (since) {
        rsi_count(writer->shared->idle_ticks, now - since);
        rsi_store_relaxed(&writer->shared->idle_since_tsc, UINT64_C(0));
    }
    if (rsi_trace_is_on())
        rsi_trace_switch(writer, NULL, t, RSI_LEAVES_ENDED, now);
    enter(writer, t, now);
}

static RSI_COLD void learn_rate(const struct rsi_store_head *head, uint64_t now_ns)
{
    double per_ns = (double)(rsi_tsc() - head->tsc) / (double)(now_ns - head->monotonic_ns);
    rsi_store_relaxed(&rsi_sampling_long, (uint64_t)(per_ns * RSI_SAMPLING_LONG_NS));
}

/*
 * Measure the cost of a time stamp again, and when it is due next: after 1, 2, 4 ms and so on, at most a second apart. A
 * machine that was slow for a moment when recording began would make every short time too short.
 */
static RSI_COLD void learn_cost(struct rsi_store_head *head, uint64_t now_ns)
{
    uint64_t age_ns = now_ns > head->monotonic_ns ? now_ns - head->monotonic_ns : 0;
    if (age_ns < RATE_KNOWN_NS)
        age_ns = RATE_KNOWN_NS;
    rsi_store_relaxed(&cost_due_ns, now_ns + (age_ns < COST_KNOWN_NS ? age_ns : COST_KNOWN_NS));
    rsi_file_time_stamps(head);
    rsi_store_relaxed(&rsi_sampling_cost, rsi_load_relaxed(&head->stamps_ticks) / RSI_STORE_STAMPS);
}

void rsi_account_look(struct rsi_worker *w, uint64_t now_ns)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with rsi_file_open */
    rsi_file_tick(now_ns);
    rsi_trace_look(now_ns);
    bool is_exact = rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_COUNTED || !head ||
                    now_ns < head->monotonic_ns + RATE_KNOWN_NS;
    if (head && rsi_unlikely(now_ns >= rsi_load_relaxed(&cost_due_ns)))
        learn_cost(head, now_ns);
    if (!is_exact && rsi_load_relaxed(&rsi_sampling_long) == UINT64_MAX)
        learn_rate(head, now_ns);
    if (!w->exec.current)
        (void)rsi_sampling_wake(&w->sampling);
    rsi_sampling_look(&w->sampling, rsi_load_relaxed(&w->turn_ns), is_exact);
    if (w->sampling.left != 0 && rsi_load_relaxed(&head->is_sampled) == 0)
        rsi_store_relaxed(&head->is_sampled, UINT64_C(1));
}

/* The time of an event that is not timed, on the calling kernel thread. */
RSI_INLINE uint64_t about_now(const struct rsi_exec *exec)
{
    const struct rsi_worker *w = exec->worker;
    /* In its idle loop it may not have looked for long. */
    return w && exec->current && rsi_sampling_is_fresh(&w->sampling)
               ? rsi_sampling_about_now(&w->sampling)
               : rsi_tsc();
}

void rsi_account_new(struct rouse_thread *t)
{
    const struct rsi_exec *exec = rsi_exec_self();
    bool is_exact = !exec->worker || rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_COUNTED;
    uint32_t weight = is_exact ? 1 : rsi_sampling_toss(&exec->worker->sampling).wait;
    uint64_t now = weight ? rsi_tsc() : about_now(exec);
    rsi_store_relaxed(&t->waiter.record.weight, (uint8_t)weight);
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
    leave(writer, self, RSI_LEAVES_WAITING, now, 1, 1);
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

RSI_INLINE void woken(struct rouse_thread *t, struct rsi_store_thread *slot, uint64_t waker_id,
                      uint64_t wake_site, uint32_t verdict, uint64_t now)
{
    t->waiter.record.woken = number_of(t);
    rsi_store_relaxed(&slot->waker_id, waker_id);
    rsi_store_relaxed(&slot->wake_site, wake_site);
    rsi_store_relaxed(&slot->verdict, (uint16_t)verdict);
    rsi_store_release(&slot->wake_tsc, now); /* a reader that sees it also sees the three above */
}

/* If sites are call stacks, or events are traced. */
static RSI_COLD struct rouse_thread *wake_slow(struct rouse_thread *t,
                                               struct rsi_store_thread *slot, uint64_t waker_id,
                                               int result, const void *site, uint64_t now)
{
    struct rsi_writer *writer = rsi_exec_self()->writer;
    uint64_t wake_site = rsi_site_of(writer, site);
    if (rsi_trace_is_on() && writer) /* otherwise the thread's RUN event shows it */
        rsi_trace_wake(writer, t, verdict_of(result), wake_site, waker_id);
    woken(t, slot, waker_id, wake_site, verdict_of(result), now);
    return t;
}

/*
 * When t, whose slot this is, is woken by the calling kernel thread. It need not be exact if the wait is neither timed nor long.
 * Then it is not before the wait began: readers would take t for asleep.
 */
RSI_INLINE uint64_t wake_stamp(const struct rsi_exec *exec, const struct rouse_thread *t,
                               const struct rsi_store_thread *slot)
{
    if (rsi_load_relaxed(&t->waiter.record.weight) != 0)
        return rsi_tsc();
    uint64_t now = about_now(exec), since = rsi_load_relaxed(&slot->since_tsc);
    if (now <= since)
        return since;
    return 2 * (now - since) >= rsi_load_relaxed(&rsi_sampling_long) ? rsi_tsc() : now;
}

struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site)
{
    /* t may be about to sleep and just be getting its slot. Acquire: pairs with slot_new. */
    struct rsi_store_thread *slot = rsi_load_acquire(&t->waiter.record.slot);
    if (rsi_unlikely(!slot))
        return t;
    const struct rsi_exec *exec = rsi_exec_self();
    const struct rouse_thread *waker = site ? exec->current : NULL;
    uint64_t waker_id = waker ? waker->id : 0, now = wake_stamp(exec, t, slot);
    if (rsi_unlikely(rsi_load_relaxed(&rsi_site_depth) != 1) || rsi_trace_is_on())
        return wake_slow(t, slot, waker_id, result, site, now);
    woken(t, slot, waker_id, (uintptr_t)site, verdict_of(result), now);
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
    if (self->waiter.record.counted != number_of(self))
        return false; /* recording was switched on meanwhile: the slot describes an earlier wait */
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
        rsi_store_relaxed(&slot->verdict, (uint16_t)verdict);
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
    const struct rsi_exec *exec = rsi_exec_self();
    struct rsi_writer *writer = exec->writer;
    if (!slot)
        return;
    rsi_store_relaxed(&self->waiter.record.slot, NULL);
    if (rsi_trace_is_on() && writer)
        rsi_trace_end(writer, self);
    struct rsi_sampling *s = exec->worker ? &exec->worker->sampling : NULL;
    uint32_t weight = 1;
    uint64_t now;
    if (!s)
        now = rsi_tsc();
    else if (s->left != 0 && rsi_sampling_is_short(s))
        weight = 0, now = rsi_sampling_about_now(s);
    else
        weight = turn_end(s, slot, &now);
    if (slot->doing == RSI_DOES_RUN)
        rsi_count(slot->ticks[RSI_IN_USR], weight * (now - slot->run_tsc));
    if (s)
        s->turn_weight = 0;
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
