/* SPDX-License-Identifier: MIT */
/*
 * order.c - the queues of --accept, in memory that all processes of the run share.
 *
 * Shared: a queue for each listener, with one word, turn (a number that grows, and the place whose turn it is, or
 * nobody's); a place for each thread that has ever waited, with the number of its coming, 0 while it is in no queue. The
 * number tells the queue as well: a place that was chosen in one may be in another by G3.
 *   enter: E1 number = the next           E2 if turn is nobody's, swap it for one's own
 *   leave: L1 number = 0                  L2 if turn is one's own, give it
 *   give:  G1 choose a place by its number    G2 swap turn for it    G3 look at its number again, and give on if it
 *          has left; wake it              if there was none to choose: swap turn for nobody, and choose again
 * Invariant: while a thread is in a queue and not missed, the turn is not nobody's for longer than a give takes. E1
 * before E2 and G2 before the choice after it: either E2 sees nobody, or the choice sees E1. L1 before L2 and G2 before
 * G3: either L2 sees that the turn is its own, or G3 that the place is left. All of them are seq_cst.
 *
 * Nothing here is held: who dies or stops in its turn is a turn that is not taken. Each thread that waits for its turn
 * looks ten times a second: if the same turn and a connection are there for 100 ms, or the thread whose turn it is is no
 * more, it gives that turn on, and marks the place as missed. A missed place gets no turn until its thread, which then
 * finds the mark, removes it. So a turn can be nobody's while only missed ones are in the queue, or because who was
 * giving it has died: a look that finds that takes it. Model: tests/model/order.pml.
 *
 * lifo: the turn goes to who came last; who has it keeps it until a connection comes. Who is passed over for 100 ms goes
 * first.
 *
 * Rejected: a gate for each process as in io/turns.c, an epoll set that the listener is put into (it must be in the
 * tables of all processes, before they are forked; here it costs a wake-up more, for the turn); signals (they interrupt
 * what the program does, and end a program that has taken our handler away); a lock in the shared memory.
 */
#include "accept/order.h"

#include "os/os.h"

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
#define QUEUE 64u             /* modulo which a number tells its queue */
#define SLOT UINT64_C(0xffff) /* of turn: the place + 1; 0: nobody's */

struct queue {
    uint64_t cookie;  /* 0: free */
    uint64_t turn;    /* number << 16 | SLOT */
    uint64_t callers; /* so far */
    uint64_t spare[5];
};

struct place {
    uint64_t owner;     /* the thread's tid; 0: free */
    uint64_t number;    /* of its coming, and by QUEUE the queue; 0: it is in none */
    uint64_t passed_ns; /* when another one was chosen first, that came later; 0: never */
    uint32_t queue;     /* that its thread entered last */
    uint32_t word;      /* grows with each turn given: a futex */
    uint32_t is_missed;
    uint32_t by_socket;               /* it sleeps in a poll of its socket */
    char name[RPI_NOTIFY_NAME_BYTES]; /* of that */
    uint64_t spare[2];
};

struct shared {
    uint64_t pid_namespace; /* that owners are of; by the first process */
    uint64_t spare[7];
    struct queue queues[QUEUES];
    struct place places[PLACES];
};
_Static_assert(sizeof(struct shared) == 20480, "rouse/run/launch.py makes the file");

static enum { AS_IT_IS, FIFO, LIFO, SCATTER } order;
static struct shared *shared; /* NULL: no turns */
static uint64_t delay_most_ns;
static uint64_t random_state; /* relaxed: any thread; a lost step does no harm */

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

/* Numbers of threads mean the same as to the first process of the run. */
static bool has_same_pids(void)
{
    struct stat status;
    uint64_t none = 0;
    if (stat("/proc/self/ns/pid", &status) != 0)
        return false;
    return rsi_cas_seq_cst(&shared->pid_namespace, &none, (uint64_t)status.st_ino) ||
           none == status.st_ino;
}

/* A thread of this number is no more, if it has a place: its program was run by exec, or the number is another's now. */
static void places_forget(uint64_t tid)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &shared->places[i];
        uint64_t number = rsi_load_seq_cst(&place->number), owner = tid;
        if (rsi_load_seq_cst(&place->owner) != tid)
            continue;
        rsi_cas_seq_cst(&place->number, &number, UINT64_C(0)); /* or a new owner's by now */
        rsi_cas_seq_cst(&place->owner, &owner, UINT64_C(0));
    }
}

void rpi_order_begin(void)
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

/* Whom the order has first, with the number of its coming; NULL: nobody waits. */
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

/* Somebody else's from now on, if it is still that. False: it was not. */
static bool give(struct rpi_thread *self, struct queue *queue, uint64_t turn)
{
    for (bool is_first = true;; is_first = false) {
        uint64_t number;
        bool is_promoted;
        struct place *place = choose(queue, &number, &is_promoted);
        if (!place && (turn & SLOT) == 0)
            return true; /* nobody has come meanwhile */
        uint64_t slot = place ? (uint64_t)(place - shared->places) + 1 : 0;
        uint64_t next = ((turn >> 16) + 1) << 16 | slot;
        if (!rsi_cas_seq_cst(&queue->turn, &turn, next)) /* G2 */
            return !is_first;
        turn = next;
        if (!place)
            continue;
        uint64_t owner = rsi_load_seq_cst(&place->owner);
        if (is_dead(owner)) {
            rsi_cas_seq_cst(&place->number, &number, UINT64_C(0)); /* or a new owner's by now */
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
    bool can_be_told = !by_socket || rpi_notify_open(self, place->name);
    self->is_busy = false;
    if (!self->order_row || !can_be_told)
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
            is_any |= (wait->listeners[i].revents & ~POLLNVAL) != 0; /* which says it is closed */
    errno = error;
    return is_any;
}

/* Another look after 100 ms: is the turn taken? */
static void look(struct rpi_thread *self, const struct rpi_order_wait *wait, uint64_t *seen,
                 uint64_t *since_ns)
{
    struct queue *queue = queue_now(self);
    uint64_t turn = rsi_load_seq_cst(&queue->turn), slot = turn & SLOT, now_ns = rsi_now_ns();
    bool is_same = turn == *seen;
    rsi_store_relaxed(&place_of(self)->is_missed, 0u);
    *seen = turn;
    if (slot == 0) /* all were missed, or who gave it is no more */
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

/* One sleep. Returns 1: awake; 0: after the looks' time; -EINTR. */
static int sleep_for_turn(struct rpi_thread *self, const struct rpi_order_wait *wait,
                          uint64_t until_ns)
{
    struct place *place = place_of(self);
    uint32_t word = rsi_load_seq_cst(&place->word); /* before the look at turn; pairs with wake */
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
