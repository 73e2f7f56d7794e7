/* SPDX-License-Identifier: MIT */
/*
 * raw_uring.c - a minimal HTTP server on io_uring, the lower bound for the others.
 *
 *   bench-raw-uring PORT TEXT [LOOPS]   serves TEXT on 127.0.0.1 until it is killed; PORT 0: any free one
 *
 * LOOPS processes serve, with a listener each (default 1).
 *
 * One kernel thread enters the ring and runs its completions. One multishot accept accepts connections into the
 * ring's own table. One multishot receive per connection reads into buffers that the kernel picks from a ring of
 * buffers. One io_uring_enter per round submits the answers to all input of the previous round and waits for more.
 *
 * Order of answers: a connection has one send per round. This send neither waits nor reports success, so it is
 * over when the round's io_uring_enter returns. If it could not send everything, that is reported before anything
 * that is received later, and the rest goes out by sends that wait, one at a time.
 *
 * The program makes the system calls itself, so that no library must be installed. If io_uring is missing or too
 * old, it prints the reason and ends with status 77.
 */
#include "raw.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOT_RUN 77
#define REQUESTS 4096
#define COMPLETIONS 16384
#define BUFFERS 1024
#define BUFFER_BYTES 4096
#define BUFFER_STRIDE (BUFFER_BYTES + 64) /* otherwise all buffers begin in one set of the cache */
#define CONNECTIONS_MOST 65536

enum operation { ACCEPT, RECEIVE, SEND_AT_ONCE, SEND_WAITING, CLOSE };

struct connection {
    bool open;
    bool queued;  /* it is in this round's list */
    bool waiting; /* a send that waits is under way */
    bool ended;   /* to be closed after that send */
    struct raw_tail tail;
    size_t owed;         /* bytes of answers not yet handed to the kernel */
    size_t reply_offset; /* position of the next byte to send in the answer */
    size_t handed;       /* bytes of the last send */
};

struct ring {
    int fd;
    unsigned *request_tail, request_mask, pending;
    struct io_uring_sqe *requests;
    unsigned *completion_head, *completion_tail, completion_mask;
    const struct io_uring_cqe *completions;
    struct io_uring_buf_ring *free_buffers;
    uint16_t free_tail;
    char *buffers;
};

static struct ring ring;
static int listener;
static struct connection *connections; /* by their place in the ring's table */
static unsigned *queue, queued;        /* connections that are owed an answer, this round */

_Noreturn static void not_run(const char *what)
{
    fprintf(stderr, "%s: not run: %s: %s\n", raw_program, what, strerror(errno));
    exit(NOT_RUN);
}

static void *map(size_t bytes, int flags, int fd, off_t offset)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, offset);
    if (at == MAP_FAILED)
        raw_die("mmap");
    return at;
}

static void make_ring(void)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL |
                 IORING_SETUP_CQSIZE,
        .cq_entries = COMPLETIONS,
    };

    ring.fd = (int)syscall(SYS_io_uring_setup, REQUESTS, &params);
    if (ring.fd < 0)
        not_run("io_uring_setup");
    const size_t submitting = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t completing = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = map(submitting > completing ? submitting : completing, MAP_SHARED, ring.fd,
                      IORING_OFF_SQ_RING);
    ring.requests =
        map(params.sq_entries * sizeof(struct io_uring_sqe), MAP_SHARED, ring.fd, IORING_OFF_SQES);
    ring.request_tail = (unsigned *)(rings + params.sq_off.tail);
    ring.request_mask = params.sq_entries - 1;
    unsigned *order = (unsigned *)(rings + params.sq_off.array);
    for (unsigned i = 0; i < params.sq_entries; i++)
        order[i] = i;
    ring.completion_head = (unsigned *)(rings + params.cq_off.head);
    ring.completion_tail = (unsigned *)(rings + params.cq_off.tail);
    ring.completion_mask = params.cq_entries - 1;
    ring.completions = (const struct io_uring_cqe *)(rings + params.cq_off.cqes);
}

static void offer_buffer(unsigned id)
{
    struct io_uring_buf *slot = &ring.free_buffers->bufs[ring.free_tail++ & (BUFFERS - 1)];
    slot->addr = (uintptr_t)(ring.buffers + id * BUFFER_STRIDE + RAW_TAIL);
    slot->len = BUFFER_BYTES;
    slot->bid = (uint16_t)id;
}

static void publish_buffers(void)
{
    /* Release: pairs with the kernel's acquire when it takes a buffer. */
    __atomic_store_n(&ring.free_buffers->tail, ring.free_tail, __ATOMIC_RELEASE);
}

static void make_buffers(void)
{
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;

    ring.free_buffers = map(BUFFERS * sizeof(struct io_uring_buf), anonymous, -1, 0);
    ring.buffers = map((size_t)BUFFERS * BUFFER_STRIDE, anonymous, -1, 0);
    struct io_uring_buf_reg wanted = { .ring_addr = (uintptr_t)ring.free_buffers,
                                       .ring_entries = BUFFERS };
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_PBUF_RING, &wanted, 1) != 0)
        not_run("a ring of buffers");
    for (unsigned i = 0; i < BUFFERS; i++)
        offer_buffer(i);
    publish_buffers();
}

static void make_connections(unsigned most)
{
    struct io_uring_rsrc_register table = { .nr = most, .flags = IORING_RSRC_REGISTER_SPARSE };

    connections = calloc(most, sizeof *connections);
    queue = calloc(most, sizeof *queue);
    if (!connections || !queue)
        raw_die("memory");
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES2, &table, sizeof table) != 0)
        not_run("a table of descriptors");
}

/* Hand over the requests and, if wait is set, wait for a completion. */
static void enter(bool wait)
{
    const long n = syscall(SYS_io_uring_enter, ring.fd, ring.pending, wait ? 1 : 0,
                           wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
        raw_die("io_uring_enter");
    if (n > 0)
        ring.pending -= (unsigned)n;
}

static struct io_uring_sqe *request(enum operation operation, uint8_t code, unsigned slot)
{
    while (ring.pending > ring.request_mask)
        enter(false);
    const unsigned tail = *ring.request_tail;
    struct io_uring_sqe *r = &ring.requests[tail & ring.request_mask];

    memset(r, 0, sizeof *r);
    r->opcode = code;
    r->fd = (int)slot;
    r->flags = IOSQE_FIXED_FILE;
    r->user_data = (uint64_t)operation << 32 | slot;
    /* Plain: the kernel reads it in io_uring_enter, on this thread. */
    *ring.request_tail = tail + 1;
    ring.pending++;
    return r;
}

static void accept_more(void)
{
    struct io_uring_sqe *r = request(ACCEPT, IORING_OP_ACCEPT, 0);
    r->fd = listener;
    r->flags = 0;
    r->ioprio = IORING_ACCEPT_MULTISHOT;
    r->file_index = IORING_FILE_INDEX_ALLOC;
}

static void receive_more(unsigned slot)
{
    struct io_uring_sqe *r = request(RECEIVE, IORING_OP_RECV, slot);
    r->ioprio = IORING_RECV_MULTISHOT;
    r->flags |= IOSQE_BUFFER_SELECT;
}

static void close_connection(unsigned slot)
{
    connections[slot].open = false;
    struct io_uring_sqe *r = request(CLOSE, IORING_OP_CLOSE, 0);
    r->fd = 0;
    r->flags = IOSQE_CQE_SKIP_SUCCESS;
    r->file_index = slot + 1;
}

static void owe(unsigned slot, size_t bytes)
{
    struct connection *c = &connections[slot];
    c->owed += bytes;
    if (c->owed > 0 && !c->queued && !c->waiting) {
        c->queued = true;
        queue[queued++] = slot;
    }
}

static void send_owed(unsigned slot, bool at_once)
{
    struct connection *c = &connections[slot];
    const size_t room = raw_reply_bytes * RAW_JOINED - c->reply_offset;

    /* Only one send may be under way, so answers that do not fit into one go out by sends that report. */
    at_once = at_once && c->owed <= room;
    struct io_uring_sqe *r = request(at_once ? SEND_AT_ONCE : SEND_WAITING, IORING_OP_SEND, slot);
    c->handed = c->owed < room ? c->owed : room;
    r->addr = (uintptr_t)(raw_replies + c->reply_offset);
    r->len = (unsigned)c->handed;
    r->msg_flags = MSG_NOSIGNAL | MSG_WAITALL | (at_once ? MSG_DONTWAIT : 0);
    if (at_once)
        r->flags |= IOSQE_CQE_SKIP_SUCCESS;
    c->waiting = !at_once;
    c->owed -= c->handed;
    c->reply_offset = (c->reply_offset + c->handed) % raw_reply_bytes;
}

/* A send that waits has ended, or one that does not wait has sent too little. */
static void sent(unsigned slot, int result)
{
    struct connection *c = &connections[slot];

    if (!c->open)
        return;
    c->waiting = false;
    if (result >= 0 || result == -EAGAIN) {
        const size_t unsent = c->handed - (size_t)(result > 0 ? result : 0);
        c->owed += unsent;
        c->reply_offset = (c->reply_offset + raw_reply_bytes - unsent % raw_reply_bytes) %
                          raw_reply_bytes;
        if (c->owed > 0)
            send_owed(slot, false);
    } else {
        c->owed = 0; /* broken; the receive reports it */
    }
    if (c->ended && !c->waiting)
        close_connection(slot);
}

static void received(unsigned slot, const struct io_uring_cqe *done)
{
    struct connection *c = &connections[slot];
    const unsigned id = done->flags >> IORING_CQE_BUFFER_SHIFT;

    if (done->res > 0) {
        char *text = ring.buffers + id * BUFFER_STRIDE + RAW_TAIL;
        owe(slot, raw_count_requests(&c->tail, text, (size_t)done->res) * raw_reply_bytes);
    }
    if (done->flags & IORING_CQE_F_BUFFER)
        offer_buffer(id);
    if (done->flags & IORING_CQE_F_MORE)
        return;
    if (done->res > 0 || done->res == -ENOBUFS)
        receive_more(slot);
    else
        c->ended = true;
    if (c->ended && !c->waiting && !c->queued)
        close_connection(slot);
}

static void accepted(const struct io_uring_cqe *done)
{
    if (done->res >= 0) {
        connections[done->res] = (struct connection){ .open = true };
        receive_more((unsigned)done->res);
    } else if (done->res != -ECONNABORTED) {
        errno = -done->res;
        raw_die("accept");
    }
    if (!(done->flags & IORING_CQE_F_MORE))
        accept_more();
}

static void complete(const struct io_uring_cqe *done)
{
    const unsigned slot = (unsigned)done->user_data;

    switch ((enum operation)(done->user_data >> 32)) {
    case RECEIVE: received(slot, done); break;
    case SEND_AT_ONCE:
    case SEND_WAITING: sent(slot, done->res); break;
    case ACCEPT: accepted(done); break;
    case CLOSE: break;
    }
}

static void serve(void)
{
    for (;;) {
        unsigned head = *ring.completion_head;
        /* Acquire: pairs with the kernel's release after it has written a completion. */
        const unsigned tail = __atomic_load_n(ring.completion_tail, __ATOMIC_ACQUIRE);
        for (; head != tail; head++)
            complete(&ring.completions[head & ring.completion_mask]);
        /* Release: pairs with the kernel's acquire before it writes there again. */
        __atomic_store_n(ring.completion_head, head, __ATOMIC_RELEASE);
        publish_buffers();
        for (; queued > 0; queued--) {
            const unsigned slot = queue[queued - 1];
            connections[slot].queued = false;
            send_owed(slot, true);
            if (connections[slot].ended && !connections[slot].waiting)
                close_connection(slot);
        }
        enter(true);
    }
}

int main(int argc, char **argv)
{
    raw_program = "bench-raw-uring";
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: bench-raw-uring PORT TEXT [LOOPS]\n");
        return 2;
    }
    const unsigned files = raw_raise_files();
    raw_prepare_replies(argv[2]);
    listener = raw_listen((unsigned)strtoul(argv[1], NULL, 10), 0,
                          argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 1);
    make_ring();
    make_buffers();
    make_connections(files < CONNECTIONS_MOST ? files : CONNECTIONS_MOST);
    accept_more();
    raw_announce();
    serve();
}
