/* SPDX-License-Identifier: MIT */
/*
 * poll_differential_test.c - random descriptors in random states, polled for random events. poll,
 * select and sets must return what the kernel's poll, select and epoll return. A waiting thread
 * must wake when the kernel reports an event, and not before. The environment sets ROUSE_SEED
 * (printed) and ROUSE_SCALE (rounds in percent).
 */
#include "poll_test.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>

#define THINGS 14
#define ROUNDS 100
#define CHANGES 12 /* descriptors in all, while a thread waits */

enum sort {
    SORT_WIRE, /* one end of a wire; the other may be in the world too */
    SORT_LISTENER,
    SORT_UNCONNECTED,
    SORT_FILE,
    SORT_NONE, /* a number that is no descriptor, or negative */
    SORTS
};

struct thing {
    enum sort sort;
    enum wire wire;
    int fd, peer; /* peer: -1 when it is closed or there is none */
    struct sockaddr_in address;
    int callers[4];
    int caller_count;
    short events;
};

static struct thing world[THINGS];
static uint64_t chance;

/* Whether t is in a wait. */
static bool waits(struct rouse_thread *t)
{
    return (rsi_load_acquire(&rsi_waiter(t)->claim) & 3) != 0 && !rsi_is_running(t);
}

static uint64_t draw(uint64_t below)
{
    return rsi_random_next(&chance) % below;
}

static void thing_open(struct thing *t)
{
    static const short masks[] = { POLLIN,     POLLOUT,    POLLPRI,    POLLRDHUP,
                                   POLLRDNORM, POLLRDBAND, POLLWRNORM, POLLWRBAND };
    int ends[2];
    *t = (struct thing){ .sort = draw(3) != 0 ? SORT_WIRE : (enum sort)draw(SORTS), .peer = -1 };
    for (size_t i = 0; i < LENGTH(masks); i++)
        t->events = (short)(t->events | (draw(3) == 0 ? masks[i] : 0));
    switch (t->sort) {
    case SORT_LISTENER: t->fd = tcp_listen(4, &t->address); break;
    case SORT_UNCONNECTED:
        t->fd = socket(draw(2) ? AF_INET : AF_UNIX, draw(2) ? SOCK_STREAM : SOCK_DGRAM, 0);
        break;
    case SORT_FILE:
        t->fd = draw(2) ? memfd_create("file", 0) : open("/dev/null", O_RDWR | O_CLOEXEC);
        break;
    case SORT_NONE:
        t->fd = draw(2) ? -1 - (int)draw(5) : dup(STDERR_FILENO);
        if (t->fd >= 0)
            close(t->fd);
        break;
    default: {
        t->wire = (enum wire)draw(WIRES);
        wire_open(t->wire, ends);
        bool is_first = t->wire == WIRE_EVENTFD || draw(2) == 0;
        t->fd = ends[!is_first];
        t->peer = t->wire == WIRE_EVENTFD ? -1 : ends[is_first];
    }
    }
}

static void thing_close(const struct thing *t)
{
    for (int i = 0; i < t->caller_count; i++)
        close(t->callers[i]);
    if (t->peer >= 0)
        close(t->peer);
    if (t->fd >= 0 && t->sort != SORT_NONE)
        EQUALS(rouse_close(t->fd), 0);
}

/* Make some call on one end. Its result does not matter. */
static bool push(int fd, size_t bytes, int flags)
{
    static char some[70000];
    ssize_t result = send(fd, some, bytes, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
    if (result < 0 && errno == ENOTSOCK) {
        bool was = is_nonblock(fd);
        set_nonblock(fd, true);
        result = write(fd, some, bytes);
        set_nonblock(fd, was);
    }
    return result > 0;
}

static void push_much(int fd)
{
    for (size_t bytes = 65536; bytes > 0; bytes /= 16)
        for (int i = 0; i < 1000 && push(fd, bytes, 0); i++)
            ;
}

static void change_wire(struct thing *t)
{
    if (t->wire == WIRE_EVENTFD) {
        uint64_t number = draw(2) ? 1 : UINT64_MAX - 1;
        set_nonblock(t->fd, true);
        ssize_t done = draw(2) ? write(t->fd, &number, 8) : read(t->fd, &number, 8);
        (void)done;
        set_nonblock(t->fd, false);
        return;
    }
    if (t->peer < 0)
        return;
    switch (draw(9)) {
    case 0: push(t->peer, 1 + draw(3000), 0); break;
    case 1: drain(t->fd); break;
    case 2: drain(t->peer); break;
    case 3: push(t->peer, 1, MSG_OOB); break;
    case 4: shutdown(t->peer, (int)draw(3)); break;
    case 5: shutdown(t->fd, (int)draw(3)); break;
    case 6:
        if (draw(2)) { /* a TCP reset */
            struct linger hard = { 1, 0 };
            setsockopt(t->peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(t->peer);
        t->peer = -1;
        break;
    case 7: push_much(t->fd); break;
    default: push(t->fd, 1, 0);
    }
}

static void change_listener(struct thing *t)
{
    if (t->caller_count < 4 && draw(2)) {
        t->callers[t->caller_count++] = tcp_connect(&t->address);
        return;
    }
    bool was = is_nonblock(t->fd);
    set_nonblock(t->fd, true);
    int fd = accept(t->fd, NULL, NULL);
    set_nonblock(t->fd, was);
    if (fd >= 0)
        close(fd);
}

static void change(struct thing *t)
{
    if (t->sort == SORT_WIRE)
        change_wire(t);
    else if (t->sort == SORT_LISTENER)
        change_listener(t);
}

static void world_open(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < THINGS; i++) {
        thing_open(&world[i]);
        for (uint64_t changes = draw(4); changes > 0; changes--)
            change(&world[i]);
    }
}

static void world_close(void)
{
    for (int i = 0; i < THINGS; i++)
        thing_close(&world[i]);
}

static unsigned choose(struct pollfd *fds, bool with_none)
{
    unsigned count = 0;
    for (int i = 0; i < THINGS; i++)
        if (draw(3) != 0 && (with_none || world[i].sort != SORT_NONE))
            fds[count++] = (struct pollfd){ world[i].fd, world[i].events, 0 };
    return count;
}

/*
 * Ours is compared only if the kernel's answers before and after it are the same: TCP frees room
 * and acknowledges at any moment.
 */
struct answer {
    int result;
    struct pollfd fds[THINGS];
    fd_set sets[3];
};

static void describe(const char *what, const struct pollfd *fds, unsigned count,
                     const struct answer *ours, const struct answer *theirs)
{
    fprintf(stderr, "%s: %d, and the kernel says %d\n", what, ours->result, theirs->result);
    for (unsigned i = 0; i < count; i++)
        for (int j = 0; j < THINGS; j++)
            if (world[j].fd == fds[i].fd)
                fprintf(stderr, "  %d: sort %d wire %d events %#x: %#x, and %#x\n", fds[i].fd,
                        world[j].sort, world[j].wire, (unsigned)fds[i].events,
                        (unsigned)ours->fds[i].revents, (unsigned)theirs->fds[i].revents);
}

static int answer_of(int result)
{
    return result < 0 ? -errno : result;
}

static void ask_poll(const struct pollfd *fds, unsigned count, bool is_ours, struct answer *a)
{
    memset(a, 0, sizeof *a);
    memcpy(a->fds, fds, count * sizeof *fds);
    if (is_ours)
        a->result = rouse_poll(a->fds, count, 0);
    else
        a->result = answer_of(poll(a->fds, count, 0));
}

static void ask_select(const struct pollfd *fds, unsigned count, bool is_ours, struct answer *a)
{
    static const short asked[3] = { POLLIN, POLLOUT, POLLPRI };
    struct timeval zero = { 0, 0 };
    fd_set *s = a->sets;
    memset(a, 0, sizeof *a);
    for (unsigned i = 0; i < count; i++)
        for (int set = 0; set < 3; set++)
            if (fds[i].fd >= 0 && (fds[i].events & asked[set]) != 0)
                FD_SET(fds[i].fd, &s[set]);
    if (is_ours)
        a->result = rouse_select(FD_SETSIZE, &s[0], &s[1], &s[2], &zero);
    else
        a->result = answer_of(select(FD_SETSIZE, &s[0], &s[1], &s[2], &zero));
}

static void epoll_ask(const struct pollfd *fds, unsigned count, struct answer *a)
{
    struct epoll_event told[THINGS];
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < count; i++) {
        struct epoll_event event = { .events = (uint16_t)fds[i].events, .data.u64 = i };
        a->fds[i] = fds[i];
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fds[i].fd, &event) < 0)
            a->fds[i].events = (short)errno; /* is compared too */
    }
    a->result = epoll_wait(epoll_fd, told, THINGS, 0);
    for (int i = 0; i < a->result; i++)
        a->fds[told[i].data.u64].revents = (short)told[i].events;
    close(epoll_fd);
}

static void set_ask(const struct pollfd *fds, unsigned count, struct answer *a)
{
    struct rouse_set_event told[THINGS];
    struct rouse_set *set;
    EQUALS(rouse_set_create(&set), 0);
    for (unsigned i = 0; i < count; i++) {
        int result = rouse_set_add(set, fds[i].fd, fds[i].events, 0, i);
        a->fds[i] = fds[i];
        if (result < 0)
            a->fds[i].events = (short)-result;
    }
    a->result = rouse_set_wait_until(set, told, THINGS, 0);
    a->result = a->result == -ETIMEDOUT ? 0 : a->result;
    for (int i = 0; i < a->result; i++)
        a->fds[told[i].data].revents = told[i].events;
    rouse_set_destroy(set);
}

static void ask_set(const struct pollfd *fds, unsigned count, bool is_ours, struct answer *a)
{
    memset(a, 0, sizeof *a);
    if (is_ours)
        set_ask(fds, count, a);
    else
        epoll_ask(fds, count, a);
}

static const struct {
    const char *name;
    void (*ask)(const struct pollfd *fds, unsigned count, bool is_ours, struct answer *a);
} ways[] = { { "poll", ask_poll }, { "select", ask_select }, { "set", ask_set } };

static unsigned rounds(void)
{
    const char *scale = getenv("ROUSE_SCALE");
    return (unsigned)(ROUNDS * (scale ? strtoul(scale, NULL, 10) : 100) / 100 / SCALE) + 1;
}

static void compare(void *arg, unsigned index)
{
    struct pollfd fds[THINGS];
    struct answer before, ours, after;
    (void)arg;
    (void)index;
    for (size_t way = 0; way < LENGTH(ways); way++) {
        /* An epoll set may report a descriptor that does not exist. */
        unsigned count = choose(fds, ways[way].ask != ask_set);
        do {
            ways[way].ask(fds, count, false, &before);
            ways[way].ask(fds, count, true, &ours);
            ways[way].ask(fds, count, false, &after);
        } while (memcmp(&before, &after, sizeof after) != 0);
        bool is_same = ours.result == before.result;
        if (is_same && ours.result >= 0)
            is_same = memcmp(&ours, &before, sizeof ours) == 0;
        if (!is_same)
            describe(ways[way].name, fds, count, &ours, &before);
        CHECK(is_same);
    }
}

static void a_poll_without_a_wait_returns_what_the_kernel_s_does(void **state)
{
    (void)state;
    for (unsigned round = 0; round < rounds(); round++) {
        world_open();
        for (enum crew_kind kind = 0; kind < KINDS; kind++) {
            for (int i = 0; i < THINGS; i++)
                change(&world[draw(THINGS)]);
            DOING("round %u, %s thread", round, kind_names[kind]);
            crew_run(kind, 1, compare, NULL);
        }
        world_close();
    }
}

/* A thread that waits by any of the calls. The reported events end up in fds. */
struct sleeper {
    struct pollfd fds[THINGS];
    unsigned count;
    unsigned way;
    int result;
    uint32_t is_done;
};

static void sleep_in_set(struct sleeper *s)
{
    struct rouse_set_event told[THINGS];
    struct rouse_set *set;
    EQUALS(rouse_set_create(&set), 0);
    for (unsigned i = 0; i < s->count; i++)
        (void)rouse_set_add(set, s->fds[i].fd, s->fds[i].events, 0, i);
    s->result = rouse_set_wait(set, told, THINGS);
    for (int i = 0; i < s->result; i++)
        s->fds[told[i].data].revents = told[i].events;
    rouse_set_destroy(set);
}

static void sleep_main(void *arg, unsigned index)
{
    struct sleeper *s = arg;
    (void)index;
    switch (s->way) {
    case 0: s->result = rouse_poll(s->fds, s->count, -1); break;
    case 1: s->result = rouse_poll_exclusive(s->fds, s->count, -1); break;
    default: sleep_in_set(s);
    }
    rsi_store_release(&s->is_done, 1u); /* pairs with the acquires below */
}

static bool is_done(struct sleeper *s)
{
    return rsi_load_acquire(&s->is_done) != 0;
}

/* The kernel's answer for the events that s waits for. Sets cannot hold files. */
static int truth(const struct sleeper *s, struct answer *a)
{
    if (s->way == 2)
        epoll_ask(s->fds, s->count, a);
    else
        ask_poll(s->fds, s->count, false, a);
    return a->result;
}

static void wake_in_time(enum crew_kind kind, unsigned way)
{
    static struct crew crew;
    struct answer a;
    struct sleeper s = { .way = way };
    world_open();
    s.count = choose(s.fds, false);
    struct sleeper asked = s;
    struct rouse_thread *t = crew_add(&crew, kind, sleep_main, &s);
    for (int i = 0; i < CHANGES && truth(&asked, &a) == 0; i++) {
        UNTIL(waits(t) || is_done(&s));
        CHECK(!is_done(&s) || truth(&asked, &a) != 0); /* TCP frees room at any moment */
        for (uint64_t n = draw(3) + 1; n > 0 && truth(&asked, &a) == 0; n--)
            change(&world[draw(THINGS)]);
    }
    if (truth(&asked, &a) == 0)
        (void)rouse_thread_cancel(t);
    else
        UNTIL(is_done(&s)); /* as the kernel reports an event */
    crew_join(&crew);
    if (s.result == -ECANCELED) {
        world_close();
        return;
    }
    CHECK(s.result > 0);
    /* The reported events were true, whatever TCP has changed since. */
    truth(&asked, &a);
    unsigned agreed = 0;
    for (unsigned i = 0; i < s.count; i++)
        agreed += s.fds[i].revents != 0 && (s.fds[i].revents & a.fds[i].revents) != 0;
    CHECK(agreed > 0);
    world_close();
}

static void sleepers_wake_when_the_kernel_reports_an_event(void **state)
{
    (void)state;
    for (unsigned round = 0; round < rounds(); round++)
        for (enum crew_kind kind = 0; kind < KINDS; kind++) {
            unsigned way = (unsigned)draw(3);
            DOING("round %u, %s thread, way %u", round, kind_names[kind], way);
            wake_in_time(kind, way);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_poll_without_a_wait_returns_what_the_kernel_s_does),
        cmocka_unit_test(sleepers_wake_when_the_kernel_reports_an_event),
    };
    chance = 0;
    if (argc > 1 || getenv("ROUSE_WORKERS"))
        chance = seed_of_run() * 2654435761u + 1;
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
