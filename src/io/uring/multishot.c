/* SPDX-License-Identifier: MIT */
/* multishot.c - start a multishot receive, hold what it brings, hand it to calls, end it: see multishot.h. */
#include "io/uring/multishot.h"

#include "io/accept/backlog.h"
#include "io/ready.h"
#include "io/set.h"
#include "io/uring/iov_cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* A stream with this many full buffers in a row, or this many held at once, is read by plain calls instead. */
#define FULL_MAX 2u
#define HELD_MAX 8u
/* Connections held. Beyond that they stay in the kernel's own queue, which pushes back on peers when full. */
#define BACKLOG_MAX 64u
#define DESCRIPTORS_LEAST 1024u
/* How long a close waits until the receive has been stopped. */
#define STOP_NS 100000000u

enum state { MULTISHOT_ON, MULTISHOT_ENDING, MULTISHOT_ENDED };

/* users: those that still refer to a detached struct. The last one frees it */
#define USER_KERNEL 1u  /* until the last completion of the receive */
#define USER_REQUEST 2u /* the request to stop it, until its answer */

struct rsi_multishot {
    struct rsi_mail mail; /* asks the ring's worker to cancel it */
    struct rsi_ring *ring;
    struct rsi_fd *entry;
    int fd;
    struct rsi_backlog backlog; /* a listener's; else all of the next lines */
    union {
        struct {
            uint16_t first, last; /* list of held buffers, as number + 1; 0 if none */
            uint16_t taken;       /* bytes already taken from the first buffer */
            uint16_t held;        /* number of held buffers */
        };
        uint64_t ticket; /* once it holds nothing any more: of the closer's wait */
    };
    int16_t error; /* how the stream ended. Reported once, when nothing is held any more */
    uint8_t state;
    uint8_t full; /* consecutive buffers that arrived full */
    bool is_detached;
    bool is_listener;
    bool is_void;                /* was not submitted: closed before */
    uint8_t users;               /* inside the ring's lock */
    struct rouse_thread *closer; /* waits in rsi_multishot_stop */
};
_Static_assert(sizeof(struct rsi_multishot) <= 88,
               "each connection has one, in 96 bytes of malloc");

/* By descriptor. A chunk is stored with release, as in fdtable.h. */
static struct rsi_multishot **chunks[RSI_FD_CHUNKS];

static struct rsi_multishot **slot_of(int fd)
{
    unsigned number = (unsigned)fd;
    /* Acquire: pairs with slot_make. */
    struct rsi_multishot **chunk = rsi_load_acquire(&chunks[number / RSI_FD_CHUNK]);
    return chunk != NULL ? &chunk[number % RSI_FD_CHUNK] : NULL;
}

static struct rsi_multishot **slot_make(int fd)
{
    size_t bytes = RSI_FD_CHUNK * sizeof **chunks;
    struct rsi_multishot **slot = slot_of(fd), **expected = NULL;
    if (slot != NULL)
        return slot;
    struct rsi_multishot **chunk = rsi_map(bytes);
    if (chunk == NULL)
        return NULL;
    if (!rsi_cas_release(&chunks[(unsigned)fd / RSI_FD_CHUNK], &expected, chunk)) /* slot_of */
        rsi_unmap(chunk, bytes);
    return slot_of(fd);
}

static bool holds_something(const struct rsi_multishot *shot)
{
    return shot->first != 0 || shot->backlog.count != 0;
}

/* It has ended and nothing is left to be taken or reported. */
static bool has_served(const struct rsi_multishot *shot)
{
    return shot->state == MULTISHOT_ENDED && !holds_something(shot) && shot->error == 0;
}

static void dispose(struct rsi_multishot *shot)
{
    rsi_backlog_drop(&shot->backlog);
    free(shot);
}

/* Inside the ring's lock. */
static void release(struct rsi_multishot *shot, unsigned user)
{
    shot->users &= (uint8_t)~user;
    if (shot->users == 0)
        free(shot);
}

/* Inside the ring's lock. The receive takes no more data. Its last completion may still come. */
static void stopped(struct rsi_multishot *shot, struct rsi_fd_batch *batch)
{
    if (shot->closer != NULL)
        (void)rsi_fdtable_claim(shot->closer, shot->ticket, 0, NULL, batch);
    release(shot, USER_REQUEST);
}

/* Inside the ring's lock. */
static void submit_cancel(struct rsi_multishot *shot, struct rsi_fd_batch *batch)
{
    if ((shot->users & USER_KERNEL) == 0)
        stopped(shot, batch);
    /* This fails only while the kernel has no memory for a submission: retry until it has. */
    else if (!rsi_ring_cancel(shot->ring, shot, RSI_RING_MULTISHOT, RSI_RING_MULTISHOT_CANCEL))
        rsi_mail_send(shot->ring->index, &shot->mail);
}

/* On the ring's worker. */
static void take_cancel(struct rsi_mail *mail)
{
    struct rsi_multishot *shot = rsi_container_of(mail, struct rsi_multishot, mail);
    struct rsi_ring *ring = shot->ring;
    struct rsi_fd_batch batch = { NULL, NULL };
    rsi_ring_enter(ring);
    submit_cancel(shot, &batch);
    rsi_ring_leave(ring);
    rsi_fdtable_publish(&batch);
}

void rsi_multishot_cancel_answered(struct rsi_multishot *shot, int answer,
                                   struct rsi_fd_batch *batch)
{
    if (rsi_ring_overlooked(answer))
        submit_cancel(shot, batch);
    else
        stopped(shot, batch);
}

/*
 * A thread that watches the descriptor itself (in ppoll) would not see data that a ring has taken, and a member of
 * a set needs events of every kind for as long as it is a member. With either, no multishot receive is started.
 */
static bool has_watchers_locked(const struct rsi_fd_side *side)
{
    for (const struct rsi_fd_waiter *w = side->first; w != NULL; w = w->next)
        if (w->kind == RSI_FD_WATCHER || w->kind == RSI_FD_MEMBER)
            return true;
    return false;
}

/* Under arming and the guard. Returns 2: attached. 1: armed already. 0: not suited. -EBADF: closed. */
static int attach_locked(const struct rsi_io_op *op, struct rsi_multishot *shot,
                         struct rsi_multishot **slot)
{
    struct rsi_fd *entry = op->ref.entry;
    const uint8_t bit = 1u << RSI_FD_READ;
    if (entry->generation != op->ref.generation)
        return -EBADF;
    if ((entry->armed & bit) != 0)
        return 1; /* by another call, as a receive or in the epoll set */
    if (*slot != NULL || (entry->flags & RSI_FD_IS_BULK) != 0 ||
        has_watchers_locked(&entry->sides[RSI_FD_READ]))
        return 0;
    *slot = shot;
    rsi_store_relaxed(&entry->armed, entry->armed | bit);
    rsi_store_relaxed(&entry->flags, entry->flags | RSI_FD_IS_MULTISHOT);
    return 2;
}

static void submit(struct io_uring_sqe *entry, struct rsi_multishot *shot)
{
    entry->fd = shot->fd;
    entry->user_data = (uintptr_t)shot | RSI_RING_MULTISHOT;
    if (shot->is_listener) {
        entry->opcode = IORING_OP_ACCEPT;
        entry->ioprio = IORING_ACCEPT_MULTISHOT;
        entry->accept_flags = SOCK_CLOEXEC | SOCK_NONBLOCK;
    } else {
        entry->opcode = IORING_OP_RECV;
        entry->ioprio = IORING_RECV_MULTISHOT;
        entry->flags = IOSQE_BUFFER_SELECT;
    }
}

/* With a low descriptor limit, connections that no thread serves yet must not use up the numbers. */
static bool has_many_descriptors(void)
{
    struct rlimit limit = { 0 };
    return rsi_syscall4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &limit) == 0 &&
           limit.rlim_cur >= DESCRIPTORS_LEAST;
}

/*
 * A listener with an order (accept/listener.h) is not suited: it requests each connection only when a thread's
 * turn has come.
 */
static bool is_suited(const struct rsi_io_op *op)
{
    const struct rsi_fd *entry = op->ref.entry;
    if (op->number == SYS_accept4)
        return op->arg[1] == 0 && (rsi_load_relaxed(&entry->flags) & RSI_FD_IS_ORDERED) == 0 &&
               has_many_descriptors();
    return op->side == RSI_FD_READ && (op->rules & RSI_IO_SHORT_ENDS) != 0 &&
           (op->number == SYS_recvfrom || op->number == SYS_recvmsg) &&
           rsi_load_relaxed(&entry->type) == RSI_FD_TCP &&
           (rsi_load_relaxed(&entry->flags) & RSI_FD_IS_BULK) == 0 &&
           (rsi_load_relaxed(&entry->sticky) & (RSI_FD_READ_ENDED | RSI_FD_URGENT)) == 0;
}

int rsi_multishot_arm(const struct rsi_io_op *op)
{
    struct rsi_fd *entry = op->ref.entry;
    struct rsi_ring *ring;
    if (!is_suited(op) || (ring = rsi_ring_self()) == NULL)
        return 0;
    struct rsi_multishot **slot = slot_make(op->fd), *shot = malloc(sizeof *shot);
    if (slot == NULL || shot == NULL) {
        free(shot);
        return 0;
    }
    rsi_ring_enter(ring);
    struct io_uring_sqe *receive = rsi_ring_entry(ring, NULL, RSI_RING_CANCEL);
    if (receive == NULL) {
        rsi_ring_leave(ring);
        free(shot);
        return 0;
    }
    *shot = (struct rsi_multishot){
        .ring = ring, .entry = entry, .fd = op->fd, .is_listener = op->number == SYS_accept4
    };
    rsi_guard_lock(&entry->arming);
    rsi_guard_lock(&entry->guard);
    int result = attach_locked(op, shot, slot);
    rsi_guard_unlock(&entry->guard);
    rsi_guard_unlock(&entry->arming);
    if (result == 2) {
        submit(receive, shot);
        rsi_ring_leave(ring);
        return 1;
    }
    receive->opcode = IORING_OP_NOP;
    receive->flags = IOSQE_CQE_SKIP_SUCCESS;
    rsi_ring_leave(ring);
    free(shot);
    return result;
}

/* Append one buffer to the held list. */
static void hold_locked(struct rsi_multishot *shot, unsigned number, unsigned bytes)
{
    struct rsi_ring_buffer *buffers = shot->ring->buffers;
    buffers[number] = (struct rsi_ring_buffer){ 0, (uint16_t)bytes };
    if (shot->first != 0)
        buffers[shot->last - 1].next = (uint16_t)(number + 1);
    else
        shot->first = (uint16_t)(number + 1);
    shot->last = (uint16_t)(number + 1);
    shot->held++;
    shot->full = bytes == RSI_RING_BUFFER_BYTES ? (uint8_t)(shot->full + 1) : 0;
}

/* Record what the completion brought; *events are its epoll bits. Returns whether to cancel the receive. */
static bool note_locked(struct rsi_multishot *shot, const struct io_uring_cqe *completion,
                        uint32_t *events)
{
    int result = completion->res;
    *events = EPOLLIN;
    if (result > 0 && !shot->is_listener)
        hold_locked(shot, completion->flags >> IORING_CQE_BUFFER_SHIFT, (unsigned)result);
    if ((completion->flags & IORING_CQE_F_MORE) == 0) {
        shot->state = MULTISHOT_ENDED;
        if (result == 0 && !shot->is_listener)
            *events |= EPOLLRDHUP;
        else if (result < 0 && result != -ENOBUFS && result != -ECANCELED) {
            shot->error = (int16_t)result;
            *events |= shot->is_listener ? 0 : EPOLLERR;
        }
        return false;
    }
    if (shot->full < FULL_MAX && shot->held < HELD_MAX && shot->backlog.count < BACKLOG_MAX)
        return false;
    /* Repeat the request from time to time: the kernel may have overlooked it (ring.h, rsi_ring_overlooked). */
    if (shot->state != MULTISHOT_ON && (shot->held + shot->backlog.count) % HELD_MAX != 0)
        return false;
    shot->state = MULTISHOT_ENDING;
    if (!shot->is_listener)
        rsi_store_relaxed(&shot->entry->flags, shot->entry->flags | RSI_FD_IS_BULK);
    return true;
}

bool rsi_multishot_is_current(struct rsi_multishot *shot)
{
    shot->is_void = rsi_load_relaxed(&shot->is_detached);
    return !shot->is_void;
}

/* Data that arrives for a detached receive belongs to no descriptor: return it or close it. */
static void discard(struct rsi_ring *ring, struct rsi_multishot *shot,
                    const struct io_uring_cqe *completion)
{
    if ((completion->flags & IORING_CQE_F_BUFFER) != 0) {
        unsigned number = completion->flags >> IORING_CQE_BUFFER_SHIFT;
        ring->buffers[number].next = 0;
        rsi_ring_buffers_return(ring, number + 1);
    }
    if (shot->is_listener && completion->res >= 0 && !shot->is_void)
        rsi_syscall1(SYS_close, completion->res);
    if ((completion->flags & IORING_CQE_F_MORE) == 0)
        release(shot, USER_KERNEL);
}

/*
 * Nothing is held and nothing more will arrive: calls go to the kernel again. Threads that wait for an event of
 * this receive must arm the descriptor anew, so wake them. The guard alone suffices: a thread that arms either
 * finds the bit cleared or has found it set before.
 */
static void remove_locked(struct rsi_fd *entry, struct rsi_multishot **slot,
                          struct rsi_fd_batch *batch)
{
    *slot = NULL;
    rsi_store_relaxed(&entry->flags, entry->flags & (uint8_t)~RSI_FD_IS_MULTISHOT);
    rsi_store_relaxed(&entry->armed, entry->armed & (uint8_t) ~(1u << RSI_FD_READ));
    struct rsi_fd_side *side = &entry->sides[RSI_FD_READ];
    for (struct rsi_fd_waiter *waiter = side->first, *next; waiter != NULL; waiter = next) {
        next = waiter->next;
        if (waiter->kind == RSI_FD_WATCHER)
            continue;
        if (waiter->kind == RSI_FD_MEMBER) {
            rsi_set_event_locked(waiter, RSI_FD_ANY_EVENT,
                                 batch); /* the thread that looks at it arms it */
            continue;
        }
        rsi_fdtable_unlist_locked(side, waiter);
        rsi_fdtable_claim(waiter->thread, waiter->ticket, waiter->result, NULL, batch);
    }
}

void rsi_multishot_completed(struct rsi_ring *ring, struct rsi_multishot *shot,
                             const struct io_uring_cqe *completion, struct rsi_fd_batch *batch)
{
    struct rsi_fd *entry = shot->entry;
    uint32_t events;
    int *memory = NULL, *old = NULL;
    bool is_connection = shot->is_listener && completion->res >= 0 && !shot->is_void,
         is_useless = false, is_over = false;
    /*
     * Takers only make room, so growing without the guard is safe. Without memory the connection is dropped, as by
     * a full kernel queue.
     */
    bool is_dropped = is_connection && !rsi_backlog_grow(&shot->backlog, &memory);
    rsi_guard_lock(&entry->guard);
    bool is_detached = shot->is_detached;
    if (rsi_likely(!is_detached)) {
        if (is_connection && !is_dropped)
            old = rsi_backlog_push(&shot->backlog, completion->res, memory);
        is_useless = note_locked(shot, completion, &events);
        (void)rsi_ready_event_locked(entry, events, batch);
        is_over = has_served(shot);
        if (is_over)
            remove_locked(entry, slot_of(shot->fd), batch);
    }
    rsi_guard_unlock(&entry->guard);
    /* From here the struct may be freed by the thread that takes the held data, unless it is over. */
    if (is_over)
        dispose(shot);
    free(is_detached ? memory : old);
    if (rsi_unlikely(is_dropped && !is_detached))
        rsi_syscall1(SYS_close, completion->res);
    if (rsi_unlikely(is_detached))
        discard(ring, shot, completion);
    if (rsi_unlikely(is_useless))
        (void)rsi_ring_cancel(ring, shot, RSI_RING_MULTISHOT, RSI_RING_CANCEL);
    if (rsi_unlikely(completion->res == -ENOBUFS))
        ring->is_short = true;
}

/* Copy held bytes to the caller. *freed becomes the list of buffers that are now empty. */
static size_t move_locked(struct rsi_multishot *shot, struct rsi_iov_cursor *to, uint16_t *freed)
{
    struct rsi_ring_buffer *buffers = shot->ring->buffers;
    uint16_t at = shot->first, last = 0;
    size_t taken = shot->taken, moved = 0;
    while (at != 0) {
        size_t left = buffers[at - 1].bytes - taken;
        size_t part = rsi_iov_cursor_put(to, rsi_ring_buffer(shot->ring, at - 1u) + taken, left);
        moved += part;
        taken += part;
        if (part < left)
            break;
        last = at;
        at = buffers[at - 1].next;
        taken = 0;
        if (!to->is_peek)
            shot->held--;
    }
    if (to->is_peek)
        return moved;
    if (last != 0) {
        *freed = shot->first;
        buffers[last - 1].next = 0;
    }
    shot->first = at;
    shot->taken = (uint16_t)taken;
    return moved;
}

static long call_plain(const struct rsi_io_op *op)
{
    return rsi_syscall6(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3], op->arg[4],
                        op->arg[5]);
}

/* Take from what is held. *ended: a struct with nothing left, for the caller to free. */
static long take_locked(const struct rsi_io_op *op, struct rsi_multishot **slot, uint16_t *freed,
                        struct rsi_multishot **ended, struct rsi_fd_batch *batch)
{
    struct rsi_multishot *shot = *slot;
    struct rsi_iov_cursor to;
    long result = -EAGAIN;
    if (shot->backlog.count != 0) {
        result = rsi_backlog_take(&shot->backlog, (struct sockaddr *)op->arg[1],
                                  (socklen_t *)op->arg[2]);
        if (holds_something(shot) || shot->error != 0)
            return result;
    }
    if (shot->first != 0) {
        rsi_iov_cursor_begin(op, &to);
        result = (long)move_locked(shot, &to, freed);
        /* Do not leave the end for the next call: a caller that saw the side spent would not try (ready.c). */
        if (shot->first != 0 || shot->error != 0)
            return result;
    }
    if (shot->state == MULTISHOT_ENDED) { /* with an error, or its held data is now all taken */
        *ended = shot;
        remove_locked(op->ref.entry, slot, batch);
    }
    return result;
}

long rsi_multishot_take(const struct rsi_io_op *op)
{
    struct rsi_fd *entry = op->ref.entry;
    struct rsi_fd_batch batch = { NULL, NULL };
    struct rsi_multishot **slot = slot_of(op->fd), *ended = NULL;
    struct rsi_ring *ring = NULL;
    uint16_t freed = 0;
    long result = -EAGAIN;
    rsi_guard_lock(&entry->guard);
    bool is_open = entry->generation == op->ref.generation;
    if (is_open && slot != NULL && *slot != NULL) {
        ring = (*slot)->ring;
        result = take_locked(op, slot, &freed, &ended, &batch);
    }
    rsi_guard_unlock(&entry->guard);
    if (rsi_unlikely(!is_open))
        return -EBADF;
    if (freed != 0)
        rsi_ring_buffers_return(ring, freed);
    if (rsi_likely(ring != NULL && ended == NULL))
        return result;
    rsi_fdtable_publish(&batch);
    int error = ended != NULL ? ended->error : 0;
    if (ended != NULL)
        dispose(ended);
    if (result == -EAGAIN)
        return error != 0 ? error : call_plain(op);
    return result;
}

int rsi_multishot_worker(struct rsi_fd *entry, int fd)
{
    struct rsi_multishot **slot = slot_of(fd);
    rsi_guard_lock(&entry->guard);
    const struct rsi_multishot *shot = slot != NULL ? *slot : NULL;
    int index = shot != NULL ? (int)shot->ring->index : -1;
    rsi_guard_unlock(&entry->guard);
    return index;
}

uint32_t rsi_multishot_events(struct rsi_fd *entry, int fd)
{
    uint32_t events = 0;
    rsi_guard_lock(&entry->guard);
    struct rsi_multishot **slot = slot_of(fd), *shot = slot != NULL ? *slot : NULL;
    if (shot != NULL && holds_something(shot))
        events |= EPOLLIN | EPOLLRDNORM;
    if (shot != NULL && shot->error != 0)
        events |= EPOLLIN | EPOLLRDNORM | (shot->is_listener ? 0u : EPOLLERR | EPOLLHUP);
    rsi_guard_unlock(&entry->guard);
    return events;
}

struct rsi_multishot *rsi_multishot_detach_locked(struct rsi_fd *entry, int fd)
{
    if ((entry->flags & RSI_FD_IS_MULTISHOT) == 0)
        return NULL;
    struct rsi_multishot **slot = slot_of(fd), *shot = slot != NULL ? *slot : NULL;
    rsi_store_relaxed(&entry->flags, entry->flags & (uint8_t)~RSI_FD_IS_MULTISHOT);
    if (shot == NULL)
        return NULL;
    *slot = NULL;
    rsi_store_relaxed(&shot->is_detached, true);
    shot->users = USER_KERNEL | USER_REQUEST;
    return shot;
}

struct rsi_multishot *rsi_multishot_drop(struct rsi_multishot *shot)
{
    if (shot == NULL)
        return NULL;
    if (shot->first != 0)
        rsi_ring_buffers_return(shot->ring, shot->first);
    shot->first = 0;
    rsi_backlog_drop(&shot->backlog);
    if (shot->state == MULTISHOT_ENDED) {
        free(shot);
        return NULL;
    }
    /* Until its last completion only the kernel refers to it, and the program may exit before that. */
    if (__lsan_ignore_object)
        __lsan_ignore_object(shot);
    rsi_ring_await_taken(shot->ring);
    shot->mail.take = take_cancel;
    return shot;
}

void rsi_multishot_cancel(struct rsi_multishot *shot)
{
    if (shot == NULL)
        return;
    if (rouse_worker_index() == (int)shot->ring->index)
        take_cancel(&shot->mail);
    else
        rsi_mail_send(shot->ring->index, &shot->mail);
}

void rsi_multishot_stop(struct rsi_multishot *shot, const void *site)
{
    if (shot == NULL)
        return;
    struct rouse_thread *self = rsi_self();
    uint64_t ticket =
        rsi_park_prepare(self, shot->is_listener ? ROUSE_WAIT_ACCEPT : ROUSE_WAIT_READ,
                         (const void *)(intptr_t)shot->fd, site, rsi_now_ns() + STOP_NS, 0);
    shot->closer = self;
    shot->ticket = ticket;
    rsi_multishot_cancel(shot);
    (void)rsi_park_commit(self, ticket);
}

void rsi_multishot_child(void)
{
    for (unsigned i = 0; i < RSI_FD_CHUNKS; i++)
        if (chunks[i] != NULL)
            memset(chunks[i], 0, RSI_FD_CHUNK * sizeof **chunks);
}

/* How long a call waits for one answer of another worker. */
#define REFRESH_NS 1000000u

/* Freed by the ring's worker, since the thread may give up first. */
struct refresh {
    struct rsi_mail mail;
    struct rouse_thread *thread;
    uint64_t ticket;
    struct rsi_fd_ref ref; /* entry: NULL, or whose receive is to end */
    int fd;
};

/*
 * Request the end of the receive. On its ring's worker. Inside the ring's lock no receive ends, so the struct lives on
 * after the guard is released.
 */
static void request_end(const struct rsi_fd_ref *ref, int fd)
{
    struct rsi_ring *ring = rsi_ring_self();
    struct rsi_multishot **slot = slot_of(fd), *shot = NULL;
    if (ring == NULL || slot == NULL)
        return;
    rsi_ring_enter(ring);
    rsi_guard_lock(&ref->entry->guard);
    if (ref->entry->generation == ref->generation)
        shot = *slot;
    bool is_on = shot != NULL && shot->ring == ring && shot->state != MULTISHOT_ENDED;
    if (is_on)
        shot->state = MULTISHOT_ENDING;
    rsi_guard_unlock(&ref->entry->guard);
    if (is_on)
        (void)rsi_ring_cancel(ring, shot, RSI_RING_MULTISHOT, RSI_RING_CANCEL);
    rsi_ring_leave(ring);
}

static void refresh_for(struct rsi_mail *mail)
{
    struct refresh *refresh = rsi_container_of(mail, struct refresh, mail);
    struct rouse_thread *thread = refresh->thread;
    uint64_t ticket = refresh->ticket;
    if (refresh->ref.entry != NULL)
        request_end(&refresh->ref, refresh->fd);
    free(refresh);
    rsi_ring_round(true);
    if (rsi_park_claim(thread, ticket, 0, NULL))
        rsi_park_publish(thread);
}

/* Have the ring's worker reap, and request the end of the receive before if that is wanted. */
static void refresh(const struct rsi_io_op *op, bool to_end)
{
    int index = rsi_multishot_worker(op->ref.entry, op->fd);
    if (index < 0)
        return;
    if (index == rouse_worker_index()) {
        if (to_end)
            request_end(&op->ref, op->fd);
        rsi_ring_round(true);
        return;
    }
    struct refresh *refresh = malloc(sizeof *refresh);
    if (refresh == NULL)
        return;
    struct rouse_thread *self = rsi_self();
    uint64_t ticket = rsi_park_prepare(self, (enum rouse_wait_kind)op->kind,
                                       (const void *)(intptr_t)op->fd, op->site,
                                       rsi_now_ns() + REFRESH_NS, 0);
    *refresh = (struct refresh){
        .mail.take = refresh_for, .thread = self, .ticket = ticket, .fd = op->fd
    };
    if (to_end)
        refresh->ref = op->ref;
    rsi_mail_send((unsigned)index, &refresh->mail);
    (void)rsi_park_commit(self, ticket);
}

void rsi_multishot_refresh(const struct rsi_io_op *op)
{
    refresh(op, false);
}

/* Take what is held. Returns 0 if nothing is held and no ring receives any more, -EAGAIN if one still does. */
static long take_last(const struct rsi_io_op *op)
{
    struct rsi_fd *entry = op->ref.entry;
    struct rsi_fd_batch batch = { NULL, NULL };
    struct rsi_multishot **slot = slot_of(op->fd), *shot, *ended = NULL;
    struct rsi_ring *ring = NULL;
    uint16_t freed = 0;
    long result = 0;
    rsi_guard_lock(&entry->guard);
    bool is_open = entry->generation == op->ref.generation;
    shot = is_open && slot != NULL ? *slot : NULL;
    if (!is_open) {
        result = -EBADF;
    } else if (shot != NULL && shot->is_listener) {
        result = -EBUSY;
    } else {
        rsi_store_relaxed(&entry->flags, entry->flags | RSI_FD_IS_BULK); /* no new receive */
        if (shot != NULL && shot->first != 0 && op->arg[2] == 0) {
            result = -ENOBUFS;
        } else if (shot != NULL) {
            ring = shot->ring;
            result = take_locked(op, slot, &freed, &ended, &batch);
        }
    }
    rsi_guard_unlock(&entry->guard);
    if (freed != 0)
        rsi_ring_buffers_return(ring, freed);
    rsi_fdtable_publish(&batch);
    if (ended != NULL) {
        result = result == -EAGAIN ? ended->error : result;
        dispose(ended);
    }
    return result;
}

long rsi_multishot_release(const struct rsi_io_op *op)
{
    for (;;) {
        long result = take_last(op);
        if (result != -EAGAIN || rsi_now_ns() >= op->deadline_ns)
            return result;
        refresh(op, true);
    }
}
