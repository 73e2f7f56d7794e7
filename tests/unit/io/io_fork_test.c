/* SPDX-License-Identifier: MIT */
/*
 * io_fork_test.c - after fork the child waits in an epoll set of its own. It takes no event of the
 * parent and leaves none to it, whichever kind of thread forked and whatever other threads were
 * doing.
 */
#include "io_test.h"

#include <dirent.h>
#include <poll.h>

/* How many of the process's descriptors are epoll sets. */
static unsigned epoll_sets(void)
{
    unsigned count = 0;
    char path[300], target[64];
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        count += strcmp(target, "anon_inode:[eventpoll]") == 0;
    }
    closedir(folder);
    return count;
}

struct line {
    int ends[2];
};

static void echo(void *arg, unsigned index)
{
    struct line *line = arg;
    char bytes[64];
    ssize_t got;
    (void)index;
    while ((got = rouse_read(line->ends[0], bytes, sizeof bytes)) > 0)
        EQUALS(rouse_write(line->ends[0], bytes, (size_t)got), got);
}

static void ask(int fd, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned number = i, echoed = 0;
        EQUALS(rouse_write(fd, &number, sizeof number), sizeof number);
        EQUALS(rouse_recv(fd, &echoed, sizeof echoed, MSG_WAITALL), sizeof echoed);
        EQUALS(echoed, number);
    }
}

/* The child runs an echo of its own, over a new socket and over an inherited one. */
static void live_in_child(struct line *inherited)
{
    static struct crew crew;
    struct line own;
    crew.count = 0;
    alarm(30);
    EQUALS(epoll_sets(), 0);
    wire_open(WIRE_TCP, own.ends);
    (void)crew_add(&crew, CREW_USER, echo, &own);
    (void)crew_add(&crew, CREW_USER, echo, inherited);
    ask(own.ends[1], 20);
    ask(inherited->ends[1], 20);
    EQUALS(epoll_sets(), 1);
    EQUALS(rouse_close(own.ends[1]), 0);
    EQUALS(rouse_shutdown(inherited->ends[1], SHUT_WR), 0);
    crew_join(&crew);
    _exit(0);
}

struct fork_scene {
    struct line mine, childs;
    int status;
};

static void fork_and_wait(void *arg, unsigned index)
{
    struct fork_scene *scene = arg;
    (void)index;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        live_in_child(&scene->childs);
    CHECK(waitpid(pid, &scene->status, 0) == pid);
}

static void child_has_its_own_set(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct fork_scene scene = { .status = 7 };
        char byte;
        DOING("forked by a %s thread", kind_names[kind]);
        wire_open(WIRE_UNIX, scene.mine.ends);
        wire_open(WIRE_UNIX, scene.childs.ends);
        (void)crew_add(&crew, CREW_USER, echo, &scene.mine);
        ask(scene.mine.ends[1], 5);
        UNTIL(is_awaited(scene.mine.ends[0], RSI_FD_READ));
        /*
         * A thread waited for the child's descriptor here, so the table knows it and it is in the
         * epoll set.
         */
        EQUALS(rouse_read_until(scene.childs.ends[0], &byte, 1, rouse_now_ns() + MS), -ETIMEDOUT);
        crew_run(kind, 1, fork_and_wait, &scene);
        EQUALS(scene.status, 0);
        CHECK(is_awaited(scene.mine.ends[0], RSI_FD_READ));
        ask(scene.mine.ends[1], 50);
        EQUALS(epoll_sets(), 1);
        EQUALS(rouse_close(scene.mine.ends[1]), 0);
        crew_join(&crew);
        EQUALS(rouse_close(scene.mine.ends[0]), 0);
        wire_close(scene.childs.ends);
    }
}

/* The fork comes while other threads make calls, close descriptors and arm them. */
#define BUSY 12
struct storm {
    struct line lines[BUSY];
    uint32_t is_over, rounds;
};

static void converse(void *arg, unsigned index)
{
    struct storm *storm = arg;
    while (!rsi_load_relaxed(&storm->is_over)) {
        static struct crew crews[BUSY];
        struct line *line = &storm->lines[index];
        wire_open(index % 2 ? WIRE_UNIX : WIRE_TCP, line->ends);
        (void)crew_add(&crews[index], CREW_USER, echo, line);
        ask(line->ends[1], 3);
        EQUALS(rouse_close(line->ends[1]), 0);
        crew_join(&crews[index]);
        EQUALS(rouse_close(line->ends[0]), 0);
        rsi_fetch_add_relaxed(&storm->rounds, 1u);
    }
}

static void fork_amid_a_storm(void **state)
{
    (void)state;
    static struct crew crew;
    struct storm storm = { .is_over = 0 };
    crew_add_many(&crew, CREW_MIXED, BUSY, converse, &storm);
    for (unsigned i = 0; i < 30 / SCALE; i++) {
        uint32_t before = rsi_load_relaxed(&storm.rounds);
        struct fork_scene scene = { .status = 7 };
        wire_open(WIRE_UNIX, scene.childs.ends);
        fork_and_wait(&scene, 0);
        EQUALS(scene.status, 0);
        wire_close(scene.childs.ends);
        UNTIL(rsi_load_relaxed(&storm.rounds) > before);
    }
    rsi_store_relaxed(&storm.is_over, 1);
    crew_join(&crew);
}

static struct {
    struct sockaddr_in address;
    int fd;
    int status;
} left;

static void accept_one(void *arg, unsigned index)
{
    (void)arg, (void)index;
    int fd = rouse_accept(left.fd, NULL, NULL);
    CHECK(fd >= 0);
    EQUALS(rouse_close(fd), 0);
}

static void poll_for_one(void *arg, unsigned index)
{
    struct pollfd one = { .fd = left.fd, .events = POLLIN };
    (void)arg, (void)index;
    EQUALS(rouse_poll(&one, 1, -1), 1);
    _exit(0);
}

/*
 * The child polls the listener that the parent has waited at. Then the parent leaves it to the
 * child.
 */
static void leave_to_child(void *arg, unsigned index)
{
    int told[2];
    char byte = 0;
    (void)arg, (void)index;
    CHECK(pipe2(told, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        static struct crew crew;
        alarm(30);
        struct rouse_thread *t = crew_add(&crew, CREW_USER, poll_for_one, NULL);
        UNTIL(sleeps_in(t, ROUSE_WAIT_POLL));
        EQUALS(write(told[1], &byte, 1), 1);
        crew_join(&crew);
    }
    close(told[1]);
    EQUALS(read(told[0], &byte, 1), 1);
    close(told[0]);
    EQUALS(rouse_close(left.fd), 0);
    for (left.status = 7; waitpid(pid, &left.status, WNOHANG) == 0; usleep(1000)) {
        int fd = tcp_socket(); /* refused once the child has ended */
        (void)connect(fd, (struct sockaddr *)&left.address, sizeof left.address);
        close(fd);
    }
}

static void child_waits_where_the_parent_has_waited(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        DOING("forked by a %s thread", kind_names[kind]);
        left.fd = tcp_listen(64, &left.address);
        struct rouse_thread *first = crew_add(&crew, CREW_USER, accept_one, NULL);
        UNTIL(is_in_accept(first));
        close(tcp_connect(&left.address));
        crew_join(&crew);
        crew_run(kind, 1, leave_to_child, NULL);
        EQUALS(left.status, 0);
    }
}

int main(int argc, char **argv)
{
#ifdef RSI_TSAN
    puts("not run: ThreadSanitizer ends a child that starts threads after a fork amid threads");
    return 77;
#endif
#ifdef RSI_ASAN
    puts("not run: the locks of AddressSanitizer stay in a child as the fork found them");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_has_its_own_set),
        cmocka_unit_test(fork_amid_a_storm),
        cmocka_unit_test(child_waits_where_the_parent_has_waited),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
