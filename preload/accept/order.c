/* SPDX-License-Identifier: MIT */
/*
 * order.c - the queues of --accept, in memory that all processes of the run share.
 *
 * One queue per listener, with the turn word (src/turns/ has the protocol), and one place per thread that has ever
 * waited, with the number of its arrival. The number is 0 while the thread is in no queue, so E1 and L1 of the protocol
 * write the number. It also identifies the queue, since a place that was chosen in one queue may be in another by G3.
 * So the number is the ticket of a stay.
 *
 * Each thread that waits for its turn checks ten times per second whether the turn is overdue, or its holder dead.
 *
 * lifo: the turn goes to the latest arrival, which keeps it until a connection comes. A thread that has been passed
 * over for 100 ms goes first.
 *
 * Rejected: one gate per process as in the runtime's listener, which is an epoll set that contains the listener: all
 * processes would have to inherit it by fork. (Turns cost one more wake-up than gates.) Signals, because they interrupt
 * the program's calls, and end a program that has removed our handler.
 */
#include "accept/order.h"

#include "accept/notify.h"
#include "os/os.h"
#include "process/real.h"
#include "turns/turns.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PLACES RSI_TURNS_PLACES_MOST
#define QUEUES 63u
#define QUEUE 64u /* number % QUEUE is the queue's index */

struct queue {
    uint64_t cookie; /* 0: free */
    uint64_t turn;
    uint64_t callers; /* arrivals so far */
    uint64_t spare[5];
};

struct place {
    uint64_t owner;     /* the thread, by its tid */
    uint64_t number;    /* of its arrival, with the queue in number % QUEUE; 0: in no queue */
    uint64_t passed_ns; /* when a later arrival was first chosen before it; 0: never */
    uint32_t queue;     /* the queue that its thread entered last */
    uint32_t word;      /* grows with each turn given: a futex */
    uint32_t by_socket; /* its thread sleeps in a poll of its socket */
    char name[RPI_NOTIFY_NAME_BYTES]; /* of the socket */
    uint32_t spare[5];
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

static struct rsi_turns_places places(void)
{
    return (struct rsi_turns_places){ shared->places, sizeof shared->places[0], PLACES };
}

static uint64_t owner_of(const struct place *place)
{
    return rsi_load_seq_cst(&place->owner);
}

static unsigned place_index(const struct place *place)
{
    return (unsigned)(place - shared->places) + 1;
}

/* Free the place of a thread that is gone: its arrival was number. A new owner of the place keeps both. */
static void place_clear(struct place *place, uint64_t owner, uint64_t number)
{
    (void)rsi_cas_seq_cst(&place->number, &number, UINT64_C(0)); /* unless it has a new owner */
    (void)rsi_cas_seq_cst(&place->owner, &owner, UINT64_C(0));
}

/*
 * Free the place of a thread with this tid: its program was replaced by exec, or the tid belongs to another thread now.
 */
static void places_forget(unsigned tid)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &shared->places[i];
        uint64_t number = rsi_load_seq_cst(&place->number), owner = owner_of(place);
        if (owner != 0 && rsi_turns_owner_id(owner) == tid)
            place_clear(place, owner, number);
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

static bool place_take(struct rpi_thread *self)
{
    struct rsi_turns_places all = places();
    places_forget((unsigned)self->tid);
    unsigned place = rsi_turns_place_take(&all, rsi_turns_owner_make((unsigned)self->tid), false);
    self->place = (uint16_t)place;
    if (place != 0)
        rsi_store_seq_cst(&place_of(self)->number, UINT64_C(0));
    return place != 0;
}

/* Remove the mark of a missed turn. */
static void place_unmark(const struct rpi_thread *self)
{
    struct rsi_turns_places all = places();
    (void)rsi_turns_unmark(&all, self->place, rsi_turns_owner_make((unsigned)self->tid));
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

/* A thread that gives a turn, with what the rules need. */
struct giver {
    struct rpi_thread *self;
    struct queue *queue;
    bool is_promoted; /* the thread that was chosen last had been passed over for long */
};

/* The first thread in the order. */
static unsigned choose(void *user, uint64_t turn, uint64_t *ticket)
{
    struct giver *giver = user;
    struct place *oldest = NULL, *newest = NULL;
    uint64_t first = 0, last = 0, now_ns = order == LIFO ? rsi_now_ns() : 0;
    (void)turn; /* the order of arrival does not depend on who had the turn */
    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &shared->places[i];
        uint64_t its = rsi_load_seq_cst(&place->number);
        if (its == 0 || its % QUEUE != queue_index(giver->queue) ||
            !rsi_turns_may_have(owner_of(place)))
            continue;
        if (!oldest || its < first)
            oldest = place, first = its;
        if (!newest || its > last)
            newest = place, last = its;
    }
    giver->is_promoted = false;
    if (!oldest)
        return 0;
    if (order == LIFO && oldest != newest) {
        uint64_t since = rsi_load_relaxed(&oldest->passed_ns);
        giver->is_promoted = since && now_ns - since >= RSI_TURNS_OVERDUE_NS;
        if (!since)
            rsi_store_relaxed(&oldest->passed_ns, now_ns);
    }
    bool is_oldest = order == FIFO || giver->is_promoted;
    *ticket = is_oldest ? first : last;
    return place_index(is_oldest ? oldest : newest);
}

/* Also frees the place of a dead thread. */
static bool is_there(void *user, unsigned index, uint64_t ticket)
{
    struct place *place = &shared->places[index - 1];
    uint64_t owner = owner_of(place);
    (void)user;
    if (rsi_turns_is_dead(owner)) {
        place_clear(place, owner, ticket);
        return false;
    }
    return rsi_load_seq_cst(&place->number) == ticket; /* G3 */
}

static void notify(void *user, unsigned index)
{
    const struct giver *giver = user;
    struct place *place = &shared->places[index - 1];
    rsi_count(giver->self->order_row->turns, 1);
    rsi_count(giver->self->order_row->promoted, giver->is_promoted);
    rsi_fetch_add_seq_cst(&place->word, 1u); /* pairs with sleep_for_turn */
    if (rsi_load_seq_cst(&place->by_socket))
        rpi_notify_send(giver->self, place->name);
    else
        rsi_syscall3(SYS_futex, &place->word, FUTEX_WAKE, 1);
}

static const struct rsi_turns_rules rules = { choose, is_there, notify };

/* Give the turn to another thread if it is still turn. False: it was not. */
static bool give(struct rpi_thread *self, struct queue *queue, uint64_t turn)
{
    struct giver giver = { self, queue, false };
    return rsi_turns_give(&queue->turn, turn, &rules, &giver);
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
           rsi_turn_place(rsi_load_seq_cst(&queue_now(self)->turn)) == self->place;
}

bool rpi_order_is_anothers(const struct rpi_thread *self)
{
    unsigned other = rsi_turn_place(rsi_load_seq_cst(&queue_now(self)->turn));
    return other != 0 && other <= PLACES && other != self->place &&
           rsi_load_relaxed(&shared->places[other - 1].number) != 0 &&
           !rsi_turns_is_dead(rsi_load_relaxed(&shared->places[other - 1].owner));
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
    place_unmark(self);
    if (rpi_order_is_in(self))
        return true;
    rsi_store_relaxed(&place->queue, queue_index(queue));
    rsi_store_relaxed(&place->passed_ns, UINT64_C(0));
    uint64_t number = rsi_fetch_add_seq_cst(&queue->callers, UINT64_C(1)) + 1;
    rsi_store_seq_cst(&place->number, number * QUEUE + queue_index(queue)); /* E1 */
    uint64_t turn = rsi_load_seq_cst(&queue->turn);                         /* E2 */
    if (rsi_turn_place(turn) == 0)
        (void)rsi_turns_take(&queue->turn, turn, self->place);
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
    if (rsi_turn_place(turn) == self->place && !rpi_recording_is_confined())
        (void)give(self, queue, turn);
    errno = error;
}

void rpi_order_end(struct rpi_thread *self)
{
    if (!self->place)
        return;
    rpi_order_leave(self);
    struct rsi_turns_places all = places();
    rsi_turns_place_leave(&all, self->place, rsi_turns_owner_make((unsigned)self->tid));
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

/* One periodic check: has the thread that has the turn used it? */
static void look(struct rpi_thread *self, const struct rpi_order_wait *wait,
                 struct rsi_turns_watch *watch)
{
    struct rsi_turns_places all = places();
    struct queue *queue = queue_now(self);
    place_unmark(self);
    uint64_t turn = rsi_load_seq_cst(&queue->turn);
    unsigned other = rsi_turn_place(turn);
    if (other == 0) /* all were missed, or the thread that gave it has died */
        (void)rsi_turns_take(&queue->turn, turn, self->place);
    if (other == 0 || other == self->place || other > PLACES)
        return;
    if (!rsi_turns_is_dead(rsi_turns_owner(&all, other)) &&
        rsi_turns_check(watch, turn, has_connection(wait), rsi_now_ns()) != 0)
        return;
    rsi_turns_mark(&all, other);
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
    struct rsi_turns_watch watch = { .turn = rsi_load_seq_cst(&queue_now(self)->turn) };
    for (;;) {
        uint64_t look_ns = rsi_now_ns() + RSI_TURNS_OVERDUE_NS;
        uint64_t until_ns = look_ns < wait->deadline_ns ? look_ns : wait->deadline_ns;
        int result = sleep_for_turn(self, wait, until_ns);
        pthread_testcancel();
        if (rpi_recording_is_confined())
            return 1;
        if (result != 0 || !self->place)
            return result ? result : -EINTR;
        if (rsi_now_ns() >= wait->deadline_ns)
            return 0;
        look(self, wait, &watch);
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
