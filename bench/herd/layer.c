/* SPDX-License-Identifier: MIT */
/*
 * layer.c - a select() with the mechanisms of old kernels, each behind a switch; see herd.h.
 *
 * A call stores its set and scans it, one descriptor at a time under the select lock. The scan takes events
 * and ties the thread to each descriptor that has none. If it found no event, the thread sleeps. After a
 * wake-up it scans again and records the verdict of the wake-up.
 * An event raises the descriptor's count and marks the threads to wake, under the select lock. After releasing
 * that lock it puts each marked thread on a run queue. This step takes the scheduling lock and asks the kernel
 * to run the thread.
 *
 * No wake-up is lost. A sleeper finds no event and ties itself (S1), under the descriptor's lock. Then it checks
 * `cause` and sets `asleep` (S2), both under its own lock. An event raises the count and reads the ties (E1),
 * under the descriptor's lock. Then it sets `cause` and reads `asleep` (E2), under the thread's lock. If E1 comes
 * before S1, S1 finds the event. Otherwise E1 finds the tie, and either S2 sees E2 or E2 finds the sleeper.
 * A thread with `asleep` and `notified` belongs to one waker, and only that waker sets `go`.
 */
#include "herd/herd.h"

static void lock_fd(struct herd *h, struct herd_fd *fd, struct herd_member *by)
{
    herd_lock(h, h->options->global_lock ? &h->select : &fd->lock, &by->counts.select);
}

static void unlock_fd(struct herd *h, struct herd_fd *fd)
{
    herd_unlock(h, h->options->global_lock ? &h->select : &fd->lock);
}

static void lock_thread(struct herd *h, struct herd_member *m, struct herd_member *by)
{
    herd_lock(h, h->options->global_lock ? &h->select : &m->lock, &by->counts.select);
}

static void unlock_thread(struct herd *h, struct herd_member *m)
{
    herd_unlock(h, h->options->global_lock ? &h->select : &m->lock);
}

static struct herd_lock *sched_lock(struct herd *h, struct herd_member *m)
{
    return h->options->process_lock ? &h->sched : &m->sched;
}

/*
 * The kernel's run queue serves as the run queue, so waking m puts it on the queue. A process-wide scheduling
 * lock guards the queue and is held meanwhile. A per-thread lock guards only the thread's state: the queue
 * then has its own lock inside the kernel, and the thread's lock is free by the time the thread runs.
 */
static void put_on_run_queue(struct herd_member *m, struct herd_member *by)
{
    struct herd *h = m->herd;
    struct herd_lock *lock = sched_lock(h, m);
    const bool wide = h->options->process_lock;

    herd_lock(h, lock, &by->counts.sched);
    lock->queued++;
    atomic_store_explicit(&m->go, 1, memory_order_release); /* pairs with sleep_until's acquire */
    if (wide && m != by)
        herd_futex_wake(h, &m->go, 1);
    herd_unlock(h, lock);
    if (!wide && m != by)
        herd_futex_wake(h, &m->go, 1);
}

static void take_off_run_queue(struct herd_member *m)
{
    struct herd_lock *lock = sched_lock(m->herd, m);

    herd_lock(m->herd, lock, &m->counts.sched);
    lock->queued--;
    atomic_store_explicit(&m->go, 0, memory_order_relaxed);
    herd_unlock(m->herd, lock);
}

/* Mark m for a wake-up. The caller holds m's lock. If it returns true, the caller puts m on a run queue. */
static bool mark(struct herd_member *m, enum herd_cause cause, bool hit)
{
    m->cause |= cause;
    m->hit |= hit;
    if (!m->asleep || m->notified)
        return false;
    m->notified = true;
    atomic_fetch_sub_explicit(&m->herd->asleep, 1, memory_order_relaxed);
    return true;
}

static bool is_selected(const struct herd_member *m, uint32_t at)
{
    return at - m->first < m->count;
}

static bool mark_event(struct herd_member *m, struct herd_member *by, uint32_t at)
{
    struct herd *h = m->herd;
    const bool locks = !h->options->global_lock;

    if (locks)
        lock_thread(h, m, by);
    const bool put = mark(m, HERD_EVENT, is_selected(m, at));
    if (locks)
        unlock_thread(h, m);
    return put;
}

void herd_layer_post(struct herd_member *by, uint32_t at)
{
    struct herd *h = by->herd;
    struct herd_fd *fd = &h->fd[at];
    uint16_t woken[HERD_MEMBERS_MAX];
    unsigned count = 0;

    lock_fd(h, fd, by);
    fd->pending++;
    for (unsigned word = 0; word < HERD_MEMBERS_MAX / 64; word++)
        for (uint64_t bits = fd->tied[word]; bits; bits &= bits - 1) {
            const unsigned index = word * 64 + (unsigned)__builtin_ctzll(bits);
            if (&h->member[index] != by && mark_event(&h->member[index], by, at))
                woken[count++] = (uint16_t)index;
        }
    unlock_fd(h, fd);
    for (unsigned i = 0; i < count; i++)
        put_on_run_queue(&h->member[woken[i]], by);
}

void herd_layer_stop(struct herd_member *by)
{
    struct herd *h = by->herd;
    for (unsigned i = 0; i < h->members; i++) {
        struct herd_member *m = &h->member[i];
        lock_thread(h, m, by);
        const bool put = mark(m, HERD_STOP, false);
        unlock_thread(h, m);
        if (put)
            put_on_run_queue(m, by);
    }
}

/* Take the available events. Until one is found, tie m to each descriptor without events. */
static int scan(struct herd_member *m, uint32_t *taken)
{
    struct herd *h = m->herd;
    const uint64_t bit = 1ull << (m->index % 64);
    int count = 0;

    for (uint32_t i = 0; i < m->count && count < (int)HERD_TAKEN_MAX; i++) {
        struct herd_fd *fd = &h->fd[m->first + i];
        lock_fd(h, fd, m);
        if (fd->pending > 0) {
            fd->pending--;
            taken[count++] = m->first + i;
        } else if (count == 0) {
            fd->tied[m->index / 64] |= bit;
            m->tied = i + 1 > m->tied ? i + 1 : m->tied;
        }
        unlock_fd(h, fd);
    }
    return count;
}

static void untie(struct herd_member *m)
{
    struct herd *h = m->herd;
    const uint64_t bit = 1ull << (m->index % 64);

    for (uint32_t i = 0; i < m->tied; i++) {
        struct herd_fd *fd = &h->fd[m->first + i];
        lock_fd(h, fd, m);
        fd->tied[m->index / 64] &= ~bit;
        unlock_fd(h, fd);
    }
}

void herd_layer_tie_all(struct herd_member *m)
{
    struct herd *h = m->herd;
    for (uint32_t at = 0; at < h->windows * h->sets; at++) {
        lock_fd(h, &h->fd[at], m);
        h->fd[at].tied[m->index / 64] |= 1ull << (m->index % 64);
        unlock_fd(h, &h->fd[at]);
    }
}

/* Sleep until the waker has put m on its run queue. With the exact timer the kernel enforces the deadline. */
static void sleep_until(struct herd_member *m)
{
    struct herd *h = m->herd;
    const uint64_t deadline_ns = h->options->tick ? UINT64_MAX : m->deadline_ns;

    /* Acquire: pairs with the release in put_on_run_queue. */
    while (atomic_load_explicit(&m->go, memory_order_acquire) == 0) {
        if (herd_futex_wait(h, &m->go, 0, deadline_ns))
            continue;
        lock_thread(h, m, m);
        const bool put = mark(m, HERD_TIMER, false);
        if (put)
            m->woken_ns = herd_now_ns();
        unlock_thread(h, m);
        if (put)
            put_on_run_queue(m, m);
        else /* another waker is about to */
            while (atomic_load_explicit(&m->go, memory_order_acquire) == 0)
                herd_futex_wait(h, &m->go, 0, UINT64_MAX);
    }
    take_off_run_queue(m);
}

/* The clock tick at which m's time-out ends, counted from the last tick. */
static uint64_t due_tick(const struct herd_member *m)
{
    const uint64_t now_ns = herd_now_ns();
    if (m->deadline_ns == UINT64_MAX)
        return UINT64_MAX;
    const uint64_t left_ns = m->deadline_ns > now_ns ? m->deadline_ns - now_ns : 0;
    const uint64_t tick_ns = herd_tick_ns(m->herd);
    const uint64_t ticks = (left_ns + tick_ns - 1) / tick_ns;
    return atomic_load_explicit(&m->herd->tick, memory_order_relaxed) + (ticks ? ticks : 1);
}

struct wake_up {
    bool slept; /* false: it was marked before it slept, which does not count as a wake-up */
    uint32_t cause;
    bool hit;
    uint64_t at_ns; /* when the timer acted */
};

static struct wake_up sleep_marked(struct herd_member *m)
{
    struct herd *h = m->herd;
    struct wake_up w = { .slept = false };

    lock_thread(h, m, m);
    if (m->cause == 0) {
        if (h->options->tick)
            m->due_tick = due_tick(m);
        m->asleep = w.slept = true;
        atomic_fetch_add_explicit(&h->asleep, 1, memory_order_relaxed);
        unlock_thread(h, m);
        sleep_until(m);
        lock_thread(h, m, m);
    }
    w.cause = m->cause;
    w.hit = m->hit;
    w.at_ns = m->woken_ns;
    m->cause = 0;
    m->hit = m->asleep = m->notified = false;
    unlock_thread(h, m);
    return w;
}

/* Whether the call has timed out. */
static bool judge(struct herd_member *m, const struct wake_up *w, int count)
{
    struct herd_verdicts *v = &m->counts.verdicts;
    const uint64_t now_ns = herd_now_ns();
    const bool over = count == 0 && now_ns >= m->deadline_ns;

    if (!w->slept)
        return over;
    if (count > 0) {
        v->useful++;
    } else if (over || w->cause & HERD_TIMER) {
        herd_note_timer(m, w->cause & HERD_TIMER ? w->at_ns : now_ns, now_ns);
        *(over ? &v->timeout : &v->early) += 1;
    } else {
        *(w->hit ? &v->lost_race : &v->none) += 1;
    }
    return over;
}

static void begin(struct herd_member *m)
{
    struct herd *h = m->herd;
    const uint64_t timeout_ns = h->options->timeout_ns;

    lock_thread(h, m, m);
    m->first = herd_window(h, m->index);
    m->count = h->sets;
    m->deadline_ns = timeout_ns ? herd_now_ns() + timeout_ns : UINT64_MAX;
    m->cause &= HERD_STOP;
    m->hit = false;
    unlock_thread(h, m);
    m->tied = 0;
}

int herd_layer_call(struct herd_member *m, uint32_t *taken)
{
    begin(m);
    int count = scan(m, taken);
    while (count == 0) {
        const struct wake_up w = sleep_marked(m);
        if (w.cause & HERD_STOP) {
            count = -1;
            break;
        }
        count = scan(m, taken);
        if (judge(m, &w, count))
            break;
    }
    if (!m->herd->options->broadcast)
        untie(m);
    return count;
}

static void tick_pass(struct herd *h, uint64_t tick, uint64_t now_ns)
{
    struct herd_member *by = &h->member[h->members + HERD_CLOCK];
    uint16_t due[HERD_MEMBERS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < h->members; i++) {
        struct herd_member *m = &h->member[i];
        lock_thread(h, m, by);
        if (m->asleep && m->due_tick <= tick && mark(m, HERD_TIMER, false)) {
            m->woken_ns = now_ns;
            due[count++] = (uint16_t)i;
        }
        unlock_thread(h, m);
    }
    for (unsigned i = 0; i < count; i++)
        put_on_run_queue(&h->member[due[i]], by);
}

void *herd_layer_tick(void *arg)
{
    struct herd *h = arg;
    const uint64_t tick_ns = herd_tick_ns(h);
    uint64_t next_ns = (herd_now_ns() / tick_ns + 1) * tick_ns;
    _Atomic uint32_t never = 0;

    while (!atomic_load_explicit(&h->quit, memory_order_relaxed)) {
        herd_futex_wait(h, &never, 0, next_ns);
        next_ns += tick_ns;
        const uint64_t tick = atomic_fetch_add_explicit(&h->tick, 1, memory_order_relaxed) + 1;
        tick_pass(h, tick, herd_now_ns());
    }
    return NULL;
}
