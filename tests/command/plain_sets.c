/* SPDX-License-Identifier: MIT */
/*
 * plain_sets.c - as plain_accept.c: epoll sets of every kind with a listener in them, several threads that wait for one,
 * and descriptors whose number becomes another's, or whose place in a set changes, while they are waited for in turn.
 */
#include "plain_accept.h"

#include <setjmp.h>
#include <sys/epoll.h>

enum {
    PIPE_DATA = 8, /* of the pipe, in an epoll set */
    LONG_MS = 10000,
    ASKED = 40,
};

static void set_up(int its, uint32_t flags)
{
    struct epoll_event event = { .events = EPOLLIN | flags, .data.u64 = 7 };
    check(epoll_ctl(its, EPOLL_CTL_ADD, listener, &event) == 0);
    event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = PIPE_DATA };
    check(epoll_ctl(its, EPOLL_CTL_ADD, ends[0], &event) == 0);
}

static void take(int *client)
{
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0 && close(fd) == 0 && close(*client) == 0);
}

static int others[2];

/* Under the number of the listener there is another socket from now on, and something to read. */
static void reuses(void)
{
    char byte = 'x';
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, others) == 0 && write(others[1], &byte, 1) == 1);
    check(dup2(others[0], listener) == listener);
}

static void is_left_alone(void)
{
    char byte = 0;
    check(recv(others[0], &byte, 1, MSG_DONTWAIT) == 1 && byte == 'x');
}

static void *wait_in_poll(void *unused)
{
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    here(0);
    check(poll(entries, 2, -1) > 0);
    return unused;
}

/* Natively it goes on with the listener, which the kernel still has. */
static void *wait_in_accept(void *unused)
{
    char what;
    pid_t self = getpid();
    here(0);
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0 || errno == EBADF);
    if (fd >= 0)
        check(read(fd, &what, 1) == 1 && write(fd, &self, sizeof self) == sizeof self &&
              close(fd) == 0);
    return unused;
}

static void *wait_in_set(void *unused)
{
    struct epoll_event event;
    int own = epoll_create1(0);
    set_up(own, 0);
    here(0);
    check(epoll_wait(own, &event, 1, -1) == 1 && event.data.u64 == PIPE_DATA);
    check(epoll_ctl(own, EPOLL_CTL_DEL, ends[0], NULL) == 0);
    check(epoll_wait(own, &event, 1, 0) == 0 && close(own) == 0);
    return unused;
}

/* fn waits behind another process. */
static void is_reused(int type, void *(*fn)(void *), bool by_pipe)
{
    pthread_t thread;
    int status = 0;
    char byte;
    listens(type);
    (void)server(type == SOCK_NONBLOCK);
    pid_t pid = fork_bound();
    if (pid == 0) {
        beside(fn, &thread);
        until_waits(&tids[0]);
        reuses();
        check(write(ends[1], "x", 1) == 1);
        join(&thread, 1);
        is_left_alone();
        exit(0);
    }
    check(by_pipe || read(ends[0], &byte, 1) == 1);
    for (; waitpid(pid, &status, WNOHANG) == 0; nap())
        if (!by_pipe)
            ask(connects(), 'c');
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ends_all(1);
}

static void is_reused_in_poll(void)
{
    is_reused(SOCK_NONBLOCK, wait_in_poll, true);
}

static void is_reused_in_accept(void)
{
    is_reused(0, wait_in_accept, false);
}

static void is_reused_in_set(void)
{
    is_reused(SOCK_NONBLOCK, wait_in_set, true);
}

/* Under a number that is nobody's there is no connection, for which a turn would be overdue. */
static void is_gone(void)
{
    pthread_t thread;
    int status;
    listens(SOCK_NONBLOCK);
    (void)server(true);
    pid_t pid = fork_bound();
    if (pid == 0) {
        beside(wait_in_poll, &thread);
        until_waits(&tids[0]);
        check(close(listener) == 0);
        for (long slept = switches_of(tids[0]);
             getenv("ROUSE_RUN_ACCEPT") && switches_of(tids[0]) < slept + 4;) /* it looks */
            nap();
        check(write(ends[1], "x", 1) == 1);
        join(&thread, 1);
        exit(0);
    }
    check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ends_all(1);
}

static int set;
static pid_t other;

static void *change_and_connect(void *client)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 9 };
    until_process(getpid(), 'S');
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == -1 && errno == EEXIST);
    check(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == 0);
    check(kill(other, SIGSTOP) == 0);
    until_process(other, 'T');
    *(int *)client = connects();
    return NULL;
}

static sigjmp_buf out;

static void jump(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

static void *interrupt_main(void *unused)
{
    until_process(getpid(), 'S');
    check(kill(getpid(), SIGUSR1) == 0);
    return unused;
}

static void wait_and_jump(void)
{
    struct epoll_event event;
    if (sigsetjmp(out, 1) == 0) {
        (void)epoll_wait(set, &event, 1, -1);
        check(false);
    }
}

/* From a wait for another's turn, by a handler. */
static void is_left_by_a_jump(void)
{
    struct sigaction action = { .sa_handler = jump };
    struct epoll_event event;
    pthread_t thread;
    int client;
    listens(SOCK_NONBLOCK);
    other = server(true);
    set = epoll_create1(0);
    set_up(set, 0);
    check(sigaction(SIGUSR1, &action, NULL) == 0);
    beside(interrupt_main, &thread);
    wait_and_jump();
    join(&thread, 1);
    check(kill(other, SIGSTOP) == 0);
    until_process(other, 'T');
    client = connects();
    check(epoll_wait(set, &event, 1, LONG_MS) == 1 && event.data.u64 == 7);
    take(&client);
    check(kill(other, SIGCONT) == 0);
    ends_all(1);
}

static void *take_out_and_write(void *unused)
{
    struct epoll_event event = { .events = EPOLLIN };
    until_process(getpid(), 'S');
    check(epoll_ctl(set, EPOLL_CTL_DEL, listener, &event) == 0);
    check(epoll_ctl(set, EPOLL_CTL_DEL, listener, &event) == -1 && errno == ENOENT);
    check(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == -1 && errno == ENOENT);
    check(write(ends[1], "x", 1) == 1);
    return unused;
}

/* By another thread, while it is waited for. */
static void set_is_changed(void)
{
    struct epoll_event event;
    pthread_t thread;
    char byte;
    int client, beside_it;
    listens(SOCK_NONBLOCK);
    other = server(true);
    set = epoll_create1(0);
    set_up(set, 0);
    check(pthread_create(&thread, NULL, change_and_connect, &client) == 0);
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 9);
    join(&thread, 1);
    take(&client);
    check(kill(other, SIGCONT) == 0);
    check(ask(connects(), 'c') == other);
    until_process(other, 'S');
    beside(take_out_and_write, &thread);
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == PIPE_DATA);
    join(&thread, 1);
    check(read(ends[0], &byte, 1) == 1);
    check(kill(other, SIGSTOP) == 0);
    until_process(other, 'T');
    beside_it = connects();
    check(epoll_wait(set, &event, 1, 0) == 0);
    check(kill(other, SIGCONT) == 0);
    ask(beside_it, 'c');
    ends_all(1);
}

/* Connections until there are none, as servers do that are told once; of a listener that is told of once more by rearm. */
static bool serve_all_of(const struct epoll_event *rearm)
{
    char what = 0;
    pid_t self = getpid();
    for (int fd; what != 'q' && (fd = accept(listener, NULL, NULL)) >= 0; close(fd))
        check(read(fd, &what, 1) == 1 && write(fd, &self, sizeof self) == sizeof self);
    check(what == 'q' || errno == EAGAIN);
    struct epoll_event event = *rearm;
    if (event.events & (uint32_t)EPOLLONESHOT)
        check(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == 0);
    return what != 'q';
}

static void *serve_set(void *flags)
{
    const struct epoll_event rearm = { .events = EPOLLIN | (uint32_t)(uintptr_t)flags,
                                       .data.u64 = 7 };
    struct epoll_event event;
    do
        check(epoll_wait(set, &event, 1, -1) == 1);
    while (serve_all_of(&rearm));
    return NULL;
}

/* count threads that wait for one set. */
static void sets_server(uint32_t flags, unsigned count)
{
    pthread_t threads[2];
    pid_t pid = fork_bound();
    if (pid == 0) {
        set = epoll_create1(0);
        set_up(set, flags);
        for (unsigned i = 0; i < count; i++)
            check(pthread_create(&threads[i], NULL, serve_set, (void *)(uintptr_t)flags) == 0);
        for (unsigned i = 0; i < count; i++)
            check(pthread_join(threads[i], NULL) == 0);
        exit(0);
    }
    until_process(pid, 'S');
}

static void sets(uint32_t flags, unsigned count)
{
    int fds[4], status;
    listens(SOCK_NONBLOCK);
    for (int i = 0; i < 3; i++)
        sets_server(flags, count);
    for (int i = 0; i < ASKED; i += 4) {
        for (int j = 0; j < 4; j++)
            fds[j] = connects();
        for (int j = 0; j < 4; j++)
            ask(fds[j], 'c');
    }
    for (unsigned i = 0; i < 3 * count; i++)
        ask(connects(), 'q');
    for (int i = 0; i < 3; i++)
        check(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void sets_are_shared(void)
{
    sets(0, 2);
}

static void sets_are_exclusive(void)
{
    sets(EPOLLEXCLUSIVE, 1);
}

static void sets_have_edges(void)
{
    sets((uint32_t)EPOLLET, 1);
}

static void sets_are_rearmed(void)
{
    sets(EPOLLONESHOT, 1);
}

static bool is_told, is_there, may_end;

static void flag(bool *which)
{
    __atomic_store_n(which, true, __ATOMIC_RELEASE);
}

static void until(const bool *which)
{
    while (!__atomic_load_n(which, __ATOMIC_ACQUIRE))
        nap();
}

static void *be_told_and_end(void *unused)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    here(0);
    check(poll(&entry, 1, -1) == 1);
    flag(&is_told);
    until(&may_end);
    return unused;
}

static pthread_t told;
static int clients[2];

static void *connect_twice(void *unused)
{
    until_process(getpid(), 'S');
    beside(be_told_and_end, &told);
    until_waits(&tids[0]);
    clients[0] = connects();
    clients[1] = connects();
    flag(&is_there);
    return unused;
}

/* Whose poll was told ends: what it leaves is told to one that looks for edges, who was put off. */
static void edge_is_told_anew(void)
{
    struct epoll_event event;
    pthread_t thread;
    listens(SOCK_NONBLOCK);
    set = epoll_create1(0);
    set_up(set, (uint32_t)EPOLLET);
    beside(connect_twice, &thread);
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
    until(&is_there);
    join(&thread, 1);
    take(&clients[0]);
    until(&is_told);
    int fd = accept(listener, NULL, NULL);
    flag(&may_end);
    join(&told, 1);
    if (fd < 0) {
        check(errno == EAGAIN);
        check(epoll_wait(set, &event, 1, LONG_MS) == 1 && event.data.u64 == 7);
        take(&clients[1]);
    }
}

/* Once, as the program has it: who is told takes what is there, though it is another's turn. */
static void one_is_told_once(void)
{
    struct epoll_event event = { .events = EPOLLIN | (uint32_t)EPOLLONESHOT, .data.u64 = 7 };
    struct pollfd entry;
    int client;
    listens(SOCK_NONBLOCK);
    entry = (struct pollfd){ listener, POLLIN, 0 };
    client = connects();
    check(poll(&entry, 1, -1) == 1);
    take(&client);
    other = server(true);
    check(kill(other, SIGSTOP) == 0);
    until_process(other, 'T');
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    client = connects();
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
    take(&client);
    check(kill(other, SIGCONT) == 0);
    ends_all(1);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "reuse_poll", is_reused_in_poll },
        { "reuse_accept", is_reused_in_accept },
        { "reuse_set", is_reused_in_set },
        { "change", set_is_changed },
        { "shared", sets_are_shared },
        { "exclusive", sets_are_exclusive },
        { "edge", sets_have_edges },
        { "rearmed", sets_are_rearmed },
        { "edge_anew", edge_is_told_anew },
        { "once", one_is_told_once },
        { "gone", is_gone },
        { "jump", is_left_by_a_jump },
    };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
