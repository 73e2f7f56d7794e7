/* SPDX-License-Identifier: MIT */
/*
 * order.c - the queues of --accept, in memory that all processes of the run share.
 *
 * Shared state: one queue per listener, with the word turn (a growing number, and the place that has the turn, or
 * nobody); and one place per thread that has ever waited, with the number of its arrival, which is 0 while the thread
 * is in no queue. The number also identifies the queue, since a place that was chosen in one queue may be in another by
 * G3.
 *   enter: E1 number = the next               E2 if turn is nobody's, swap in one's own place
 *   leave: L1 number = 0                      L2 if turn is one's own, give it
 *   give:  G1 choose a place by its number    G2 swap turn to it
 *          G3 read its number again: if it has left, give again, else wake it
 *          If there was none to choose: swap turn to nobody, and choose again.
 *
 * Invariant: while a thread is in a queue and not marked as missed, the turn is nobody's for no longer than a give
 * takes. E1 comes before E2, and G2 before the next choice, so E2 sees nobody or the choice sees E1. L1 comes before
 * L2, and G2 before G3, so L2 sees that the turn is its own or G3 sees that the place has left. All of these are
 * seq_cst.
 *
 * No lock is held, so a thread that dies or stops while it has the turn only leaves the turn untaken. Each thread that
 * waits for its turn checks ten times per second. If turn has not changed and a connection has waited for 100 ms, or if
 * the thread that has the turn is dead, the checking thread gives the turn on and marks the place as missed. A missed
 * place gets no turn until its thread finds the mark and removes it. So the turn can be nobody's while only missed
 * places are in the queue, or because a thread died while giving it. A check that finds this takes the turn. Model:
 * tests/model/order.pml.
 *
 * lifo: the turn goes to the latest arrival, which keeps it until a connection comes. A thread that has been passed
 * over for 100 ms goes first.
 *
 * Rejected: one gate per process as in the runtime's listener, which is an epoll set that contains the listener: all
 * processes would have to inherit it by fork. (Turns cost one more wake-up than gates.) Signals, because they interrupt
 * the program's calls, and end a program that has removed our handler. A lock in the shared memory, because its holder
 * may die.
 */
#include "accept/order.h"

#include "accept/notify.h"
#include "os/os.h"
#include "process/real.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define OVERDUE_NS UINT64_C(100000000)
#define PLACES 256u
#define QUEUES 63u
#define QUEUE 64u             /* number % QUEUE is the queue's index */
#define SLOT UINT64_C(0xffff) /* the part of turn that holds the place + 1; 0: nobody */

struct queue {
    uint64_t cookie;  /* 0: free */
    uint64_t turn;    /* number << 16 | SLOT */
    uint64_t callers; /* arrivals so far */
    uint64_t spare[5];
};

struct place {
    uint64_t owner;     /* the thread's tid; 0: free */
    uint64_t number;    /* of its arrival, with the queue in number % QUEUE; 0: in no queue */
    uint64_t passed_ns; /* when a later arrival was first chosen before it; 0: never */
    uint32_t queue;     /* the queue that its thread entered last */
    uint32_t word;      /* grows with each turn given: a futex */
    uint32_t is_missed;
    uint32_t by_socket;               /* its thread sleeps in a poll of its socket */
    char name[RPI_NOTIFY_NAME_BYTES]; /* of the socket */
    uint64_t spare[2];
};

struct shared {
    uint64_t pid_namespace; /* in which owners are numbered; set by the first process */
    uint64_t spare[7];
    struct queue queues[QUEUES];
    struct place places[PLACES];
};
_Static_assert(sizeof(struct shared) == 20480, "rouse/run/launch.py makes the file");

static enum { AS_IT_IS, FIFO, LIFO, SCATTER } order;
static struct shared *shared; /* NULL: no turns */
static uint64_t delay_most_ns;
static uint64_t random_state; /* relaxed: any thread writes; a lost update does no harm */

static bool map(void)
{
    char path[320];
    struct stat status;
    const char *folder = secure_getenv("ROUSE_OBS_DIR");
    if (!folder || rsi_format(path, sizeof path, "%s/accept", folder) >= sizeof path)
        return false;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *at = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
        status.st_size == (off_t)sizeof *shared)
        at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rpi_real.close(fd);
    if (at == MAP_FAILED)
        return false;
    shared = at;
    return true;
}

/* Whether thread ids mean the same as to the first process of the run. */
static bool has_same_pids(void)
{
    struct stat status;
    uint64_t none = 0;
    if (stat("/proc/self/ns/pid", &status) != 0)
        return false;
    return rsi_cas_seq_cst(&shared->pid_namespace, &none, (uint64_t)status.st_ino) ||
           none == status.st_ino;
}

/*
 * Free the place of a thread with this tid: its program was replaced by exec, or the tid belongs to another thread now.
 */
static void places_forget(uint64_t tid)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &shared->places[i];
        uint64_t number = rsi_load_seq_cst(&place->number), owner = tid;
        if (rsi_load_seq_cst(&place->owner) != tid)
            continue;
        rsi_cas_seq_cst(&place->number, &number, UINT64_C(0)); /* unless it has a new owner */
        rsi_cas_seq_cst(&place->owner, &owner, UINT64_C(0));
    }
}

void rpi_order_setup(void)
{
    const char *asked = secure_getenv("ROUSE_RUN_ACCEPT");
    if (!asked)
        return;
    order = strcmp(asked, "fifo") == 0           ? FIFO
            : strcmp(asked, "lifo") == 0         ? LIFO
            : strncmp(asked, "scatter:", 8) == 0 ? SCATTER
                                                 : AS_IT_IS;
    random_state = rsi_tsc() | 1;
    if (order == SCATTER)
        delay_most_ns = strtoull(asked + 8, NULL, 10);
    else if (order != AS_IT_IS && (!map() || !has_same_pids()))
        shared = NULL;
}

void rpi_order_note(void)
{
    if (shared || order == SCATTER)
        rsi_store_relaxed(&rsi_file_head->accept_order, (uint64_t)order);
    rsi_store_relaxed(&rsi_file_head->scatter_ns, delay_most_ns);
}

void rpi_order_child(void)
{
    random_state = rsi_tsc() | 1;
}

bool rpi_order_is_on(void)
{
    return !rpi_recording_is_confined() && shared != NULL;
}

uint64_t rpi_order_delay_ns(void)
{
    if (rsi_likely(delay_most_ns == 0))
        return 0;
    uint64_t state = rsi_load_relaxed(&random_state), drawn = rsi_random_next(&state);
    rsi_store_relaxed(&random_state, state);
    return (drawn >> 16) % (delay_most_ns + 1);
}

static struct place *place_of(const struct rpi_thread *self)
{
    return self->place ? &shared->places[self->place - 1] : NULL;
}

static bool is_dead(uint64_t owner)
{
    return owner == 0 || (rsi_syscall2(SYS_kill, (long)owner, 0) == -ESRCH);
}

static bool place_take(struct rpi_thread *self)
{
    places_forget((uint64_t)self->tid);
    for (unsigned i = 0; i < 2 * PLACES; i++) {
        struct place *place = &shared->places[i % PLACES];
        uint64_t owner = rsi_load_seq_cst(&place->owner);
        if (owner != 0 && (i < PLACES || !is_dead(owner)))
            continue;
        if (rsi_cas_seq_cst(&place->owner, &owner, (uint64_t)self->tid)) {
            rsi_store_seq_cst(&place->number, UINT64_C(0));
            self->place = (uint16_t)(i % PLACES + 1);
            return true;
        }
    }
    return false;
}

static struct queue *queue_of(uint64_t cookie)
{
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *queue = &shared->queues[i];
        uint64_t is = rsi_load_seq_cst(&queue->cookie);
        if (is == cookie || (is == 0 && rsi_cas_seq_cst(&queue->cookie, &is, cookie)) ||
            is == cookie)
            return queue;
    }
    return NULL;
}

static unsigned queue_index(const struct queue *queue)
{
    return (unsigned)(queue - shared->queues);
}

/* The first thread in the order, with the number of its arrival. NULL: no thread waits. */
static struct place *choose(const struct queue *queue, uint64_t *number, bool *is_promoted)
{
    struct place *oldest = NULL, *newest = NULL;
    uint64_t first = 0, last = 0, now_ns = order == LIFO ? rsi_now_ns() : 0;
    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &shared->places[i];
        uint64_t its = rsi_load_seq_cst(&place->number);
        if (its == 0 || its % QUEUE != queue_index(queue) || rsi_load_relaxed(&place->is_missed) ||
            rsi_load_relaxed(&place->owner) == 0)
            continue;
        if (!oldest || its < first)
            oldest = place, first = its;
        if (!newest || its > last)
            newest = place, last = its;
    }
    *is_promoted = false;
    if (order == LIFO && oldest != newest) {
        uint64_t since = rsi_load_relaxed(&oldest->passed_ns);
        *is_promoted = since && now_ns - since >= OVERDUE_NS;
        if (!since)
            rsi_store_relaxed(&oldest->passed_ns, now_ns);
    }
    bool is_oldest = order == FIFO || *is_promoted;
    *number = is_oldest ? first : last;
    return is_oldest ? oldest : newest;
}

static void wake(struct rpi_thread *self, struct place *place)
{
    rsi_fetch_add_seq_cst(&place->word, 1u); /* pairs with sleep_for_turn */
    if (rsi_load_seq_cst(&place->by_socket))
        rpi_notify_send(self, place->name);
    else
        rsi_syscall3(SYS_futex, &place->word, FUTEX_WAKE, 1);
}

/* Give the turn to another thread if it is still turn. False: it was not. */
static bool give(struct rpi_thread *self, struct queue *queue, uint64_t turn)
{
    for (bool is_first = true;; is_first = false) {
        uint64_t number;
        bool is_promoted;
        struct place *place = choose(queue, &number, &is_promoted);
        if (!place && (turn & SLOT) == 0)
            return true; /* no thread has arrived meanwhile */
        uint64_t slot = place ? (uint64_t)(place - shared->places) + 1 : 0;
        uint64_t next = ((turn >> 16) + 1) << 16 | slot;
        if (!rsi_cas_seq_cst(&queue->turn, &turn, next)) /* G2 */
            return !is_first;
        turn = next;
        if (!place)
            continue;
        uint64_t owner = rsi_load_seq_cst(&place->owner);
        if (is_dead(owner)) {
            rsi_cas_seq_cst(&place->number, &number, UINT64_C(0)); /* unless it has a new owner */
            rsi_cas_seq_cst(&place->owner, &owner, UINT64_C(0));
        } else if (rsi_load_seq_cst(&place->number) == number) { /* G3 */
            rsi_count(self->order_row->turns, 1);
            rsi_count(self->order_row->promoted, is_promoted);
            wake(self, place);
            return true;
        }
    }
}

static struct queue *queue_now(const struct rpi_thread *self)
{
    return &shared->queues[rsi_load_relaxed(&place_of(self)->queue)];
}

bool rpi_order_is_in(const struct rpi_thread *self)
{
    return self->place && rsi_load_relaxed(&place_of(self)->number) != 0;
}

bool rpi_order_is_mine(const struct rpi_thread *self)
{
    return rpi_recording_is_confined() || !self->place ||
           (rsi_load_seq_cst(&queue_now(self)->turn) & SLOT) == self->place;
}

bool rpi_order_is_anothers(const struct rpi_thread *self)
{
    uint64_t slot = rsi_load_seq_cst(&queue_now(self)->turn) & SLOT;
    return slot != 0 && slot <= PLACES && slot != self->place &&
           rsi_load_relaxed(&shared->places[slot - 1].number) != 0 &&
           !is_dead(rsi_load_relaxed(&shared->places[slot - 1].owner));
}

bool rpi_order_enter(struct rpi_thread *self, const struct rpi_listener *l, bool by_socket)
{
    struct queue *queue = queue_of(l->cookie);
    if (!queue || (!self->place && !place_take(self)))
        return false;
    struct place *place = place_of(self);
    self->is_put_off = false;
    if (rpi_order_is_in(self) && (queue_now(self) != queue || !rpi_order_is_mine(self)))
        rpi_order_leave(self);
    if (!rpi_thread_begin(self))
        return false;
    self->order_row = rpi_listener_row(self, l);
    bool can_be_notified = !by_socket || rpi_notify_open(self, place->name);
    self->is_busy = false;
    if (!self->order_row || !can_be_notified)
        return false;
    rsi_store_seq_cst(&place->by_socket, (uint32_t)by_socket);
    rsi_store_relaxed(&place->is_missed, 0u);
    if (rpi_order_is_in(self))
        return true;
    rsi_store_relaxed(&place->queue, queue_index(queue));
    rsi_store_relaxed(&place->passed_ns, UINT64_C(0));
    uint64_t number = rsi_fetch_add_seq_cst(&queue->callers, UINT64_C(1)) + 1;
    rsi_store_seq_cst(&place->number, number * QUEUE + queue_index(queue)); /* E1 */
    uint64_t turn = rsi_load_seq_cst(&queue->turn);                         /* E2 */
    if ((turn & SLOT) == 0)
        (void)rsi_cas_seq_cst(&queue->turn, &turn, ((turn >> 16) + 1) << 16 | self->place);
    return true;
}

void rpi_order_leave(struct rpi_thread *self)
{
    if (!rpi_order_is_in(self))
        return;
    int error = errno;
    struct queue *queue = queue_now(self);
    rsi_store_seq_cst(&place_of(self)->number, UINT64_C(0)); /* L1 */
    uint64_t turn = rsi_load_seq_cst(&queue->turn);          /* L2 */
    if ((turn & SLOT) == self->place && !rpi_recording_is_confined())
        (void)give(self, queue, turn);
    errno = error;
}

void rpi_order_end(struct rpi_thread *self)
{
    if (!self->place)
        return;
    rpi_order_leave(self);
    rsi_store_seq_cst(&place_of(self)->owner, UINT64_C(0));
    rpi_notify_close(self);
    self->place = 0;
}

static bool has_connection(const struct rpi_order_wait *wait)
{
    bool is_any = false;
    int error = errno;
    if (rpi_real.poll(wait->listeners, wait->listener_count, 0) > 0)
        for (nfds_t i = 0; i < wait->listener_count; i++)
            is_any |= (wait->listeners[i].revents & ~POLLNVAL) != 0; /* POLLNVAL: it is closed */
    errno = error;
    return is_any;
}

/* One periodic check, 100 ms after the last: has the thread that has the turn used it? */
static void look(struct rpi_thread *self, const struct rpi_order_wait *wait, uint64_t *seen,
                 uint64_t *since_ns)
{
    struct queue *queue = queue_now(self);
    uint64_t turn = rsi_load_seq_cst(&queue->turn), slot = turn & SLOT, now_ns = rsi_now_ns();
    bool is_same = turn == *seen;
    rsi_store_relaxed(&place_of(self)->is_missed, 0u);
    *seen = turn;
    if (slot == 0) /* all were missed, or the thread that gave it has died */
        (void)rsi_cas_seq_cst(&queue->turn, &turn, ((turn >> 16) + 1) << 16 | self->place);
    if (slot == 0 || slot == self->place || slot > PLACES)
        return;
    struct place *place = &shared->places[slot - 1];
    if (!is_dead(rsi_load_seq_cst(&place->owner))) {
        if (!is_same || !has_connection(wait))
            *since_ns = 0;
        else if (*since_ns == 0)
            *since_ns = now_ns;
        if (*since_ns == 0 || now_ns - *since_ns < OVERDUE_NS)
            return;
    }
    *since_ns = 0;
    rsi_store_relaxed(&place->is_missed, 1u);
    if (give(self, queue, turn))
        rsi_count(self->order_row->overdue, 1);
}

/* Sleep once. Returns 1: awake; 0: until_ns has passed; -EINTR. */
static int sleep_for_turn(struct rpi_thread *self, const struct rpi_order_wait *wait,
                          uint64_t until_ns)
{
    struct place *place = place_of(self);
    uint32_t word = rsi_load_seq_cst(&place->word); /* before reading turn; pairs with wake */
    if (rpi_order_is_mine(self))
        return 1;
    uint64_t now_ns = rsi_now_ns();
    struct timespec in = rsi_timespec(until_ns > now_ns ? until_ns - now_ns : 0);
    if (!place->by_socket) {
        long result = rsi_syscall4(SYS_futex, &place->word, FUTEX_WAIT, word, &in);
        return result == -EINTR ? -EINTR : result == -ETIMEDOUT ? 0 : 1;
    }
    wait->others[wait->count] = (struct pollfd){ rpi_notify_fd(self), POLLIN, 0 };
    int result = rpi_real.ppoll(wait->others, wait->count + 1, &in, wait->mask);
    if (result < 0)
        return errno == EINTR ? -EINTR : 1;
    if (wait->others[wait->count].revents & POLLIN)
        rpi_notify_drain(self);
    return result > 0;
}

int rpi_order_sleep(struct rpi_thread *self, const struct rpi_order_wait *wait)
{
    uint64_t seen = rsi_load_seq_cst(&queue_now(self)->turn), since_ns = 0;
    for (;;) {
        uint64_t look_ns = rsi_now_ns() + OVERDUE_NS;
        uint64_t until_ns = look_ns < wait->deadline_ns ? look_ns : wait->deadline_ns;
        int result = sleep_for_turn(self, wait, until_ns);
        pthread_testcancel();
        if (rpi_recording_is_confined())
            return 1;
        if (result != 0 || !self->place)
            return result ? result : -EINTR;
        if (rsi_now_ns() >= wait->deadline_ns)
            return 0;
        look(self, wait, &seen, &since_ns);
    }
}

void rpi_order_refuse(void)
{
    struct rpi_thread *self = rpi_self;
    if (self) {
        rpi_order_leave(self);
        self->is_put_off = true;
    }
}

void rpi_order_close(int fd)
{
    struct rpi_thread *self = rpi_self;
    if (!shared || !self || self->is_busy || !rpi_order_is_in(self))
        return;
    const struct rpi_listener *l = rpi_listener_of(fd);
    if (l && l->cookie == rsi_load_relaxed(&queue_now(self)->cookie))
        rpi_order_leave(self);
}
