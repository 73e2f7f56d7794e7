/* SPDX-License-Identifier: MIT */
/*
 * plain_out.c - as plain_accept.c: a listener is out of its epoll set, since it is another's turn, when its thread is
 * cancelled, a child of a vfork closes what it has, or a call that would close it fails; and times that are none.
 */
#include "plain_accept.h"

#include <fcntl.h>
#include <sys/epoll.h>

enum {
    LONG_MS = 10000,
    TIMES = 5,
    NUMBERS = 1024, /* of descriptors, most of which are nobody's */
    NO_FLAG = 1 << 20,
    OURS_FROM = 900, /* descriptors that are not the program's */
};

static int set;
static pid_t other;
static bool is_ready, may_wait;

/* Another process waits for the listener already. */
static void set_up(void)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };
    listens(SOCK_NONBLOCK);
    other = server(true);
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
}

static void take_one(void)
{
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0 && close(fd) == 0);
}

static int connects_to_us(void)
{
    check(kill(other, SIGSTOP) == 0);
    until_process(other, 'T');
    return connects();
}

static void ends_with(int client)
{
    check(close(client) == 0 && kill(other, SIGCONT) == 0);
    ends_all(1);
}

/* Cancelled already when it waits; has_waited: it has what it needs to be told of its turn. */
static void *wait_cancelled(void *has_waited)
{
    struct epoll_event event;
    int before;
    check(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
    check(!has_waited || epoll_wait(set, &event, 1, 1) == 0);
    __atomic_store_n(&is_ready, true, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&may_wait, __ATOMIC_ACQUIRE))
        nap();
    check(pthread_setcancelstate(before, NULL) == 0);
    (void)epoll_wait(set, &event, 1, -1);
    return NULL;
}

static void is_cancelled(void *has_waited)
{
    struct epoll_event event;
    pthread_t thread;
    void *end;
    set_up();
    int before = open_descriptors();
    check(pthread_create(&thread, NULL, wait_cancelled, has_waited) == 0);
    while (!__atomic_load_n(&is_ready, __ATOMIC_ACQUIRE))
        nap();
    check(pthread_cancel(thread) == 0);
    __atomic_store_n(&may_wait, true, __ATOMIC_RELEASE);
    check(pthread_join(thread, &end) == 0 && end == PTHREAD_CANCELED);
    check(open_descriptors() == before);
    int client = connects_to_us();
    check(epoll_wait(set, &event, 1, LONG_MS) == 1 && event.data.u64 == 7);
    take_one();
    ends_with(client);
}

static void is_cancelled_at_once(void)
{
    is_cancelled(NULL);
}

static void is_cancelled_later(void)
{
    is_cancelled(&set);
}

/* In each of the ways that there are. */
static void closes_in_child(int flags)
{
    int status;
    pid_t pid = vfork();
    if (pid == 0) {
        (void)close(set);
        (void)close(listener);
        (void)close_range(3, ~0u, flags);
        closefrom(3);
        _exit(0);
    }
    check(pid > 0 && waitpid(pid, &status, 0) == pid);
}

static void *wait_and_take(void *unused)
{
    struct epoll_event event;
    here(0);
    check(epoll_wait(set, &event, 1, LONG_MS) == 1 && event.data.u64 == 7);
    take_one();
    return unused;
}

static void waits_while(void (*happens)(int), int flags)
{
    pthread_t thread;
    set_up();
    beside(wait_and_take, &thread);
    until_waits(&tids[0]);
    happens(flags);
    int client = connects_to_us();
    join(&thread, 1);
    ends_with(client);
}

static void child_closes_set(void)
{
    waits_while(closes_in_child, 0);
}

/* Of what has the numbers of the set in a child, which is a set of its own. */
static void edits_in_child(int unused)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 9 };
    int status;
    (void)unused;
    pid_t pid = vfork();
    if (pid == 0) {
        int own = epoll_create1(0);
        bool is_right = dup2(own, set) == set &&
                        epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0 &&
                        epoll_ctl(set, EPOLL_CTL_DEL, listener, NULL) == 0;
        _exit(!is_right);
    }
    check(pid > 0 && waitpid(pid, &status, 0) == pid);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void child_edits_set(void)
{
    waits_while(edits_in_child, 0);
}

/* Nothing is closed before another program is run. */
static void marks(int flags)
{
    check(close_range(3, ~0u, flags) == 0 || errno == EINVAL ||
          errno == ENOSYS); /* older kernels */
}

static void marks_set(void)
{
    waits_while(marks, CLOSE_RANGE_CLOEXEC);
}

/* Nothing is closed, and no number made anew. */
static void renews_none(int flags)
{
    for (int fd = 3; fd < NUMBERS; fd++) {
        check(dup2(-1, fd) == -1 && errno == EBADF);
        check(dup3(fd, fd, flags) == -1 && errno == EINVAL);
        check(dup3(-1, fd, NO_FLAG) == -1 && errno == EINVAL);
    }
    check(dup2(listener, listener) == listener && dup2(set, set) == set);
    check(close_range(3, ~0u, NO_FLAG) == -1 && (errno == EINVAL || errno == ENOSYS));
    check(close_range(NUMBERS, 3, flags) == -1 && (errno == EINVAL || errno == ENOSYS));
}

static void renewal_fails(void)
{
    waits_while(renews_none, 0);
}

/* What is not the program's stays what it is as well. */
static void renewal_often_fails(void)
{
    int before = 0;
    set_up();
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    for (int i = 0; i < TIMES; i++) {
        check(poll(entries, 2, 1) == 0);
        renews_none(0);
        check(poll(entries, 2, 1) == 0);
        if (i == 0)
            before = open_descriptors();
    }
    check(open_descriptors() == before);
    ends_all(1);
}

/* Its number was closed before, and is no more the program's. */
static void stream_is_too_late(void)
{
    set_up();
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    check(dup2(ends[0], OURS_FROM) == OURS_FROM);
    FILE *stream = fdopen(OURS_FROM, "r");
    check(stream && close(OURS_FROM) == 0);
    check(poll(entries, 2, 1) == 0);
    int before = open_descriptors();
    errno = 0;
    check(fclose(stream) == EOF && errno == EBADF);
    check(poll(entries, 2, 1) == 0 && open_descriptors() == before);
    ends_all(1);
}

/* As programs do that run others: what the parent has stays open, and is used again. */
static void child_closes_all(void)
{
    int before = 0;
    set_up();
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    for (int i = 0; i < TIMES; i++) {
        check(poll(entries, 2, 1) == 0);
        closes_in_child(0);
        check(poll(entries, 2, 1) == 0);
        if (i == 0)
            before = open_descriptors();
    }
    check(open_descriptors() == before);
    ends_all(1);
}

/* Though there is something to read. */
static void times_are_wrong(void)
{
    const struct timespec wrong[] = { { -1, 0 }, { 0, -1 }, { 0, 1000000000 } };
    struct epoll_event event = { .events = EPOLLIN };
    fd_set reads;
    set_up();
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    check(write(ends[1], "x", 1) == 1 && epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
    FD_ZERO(&reads);
    FD_SET(listener, &reads);
    FD_SET(ends[0], &reads);
    for (int i = 0; i < 3; i++) {
        struct timeval time = { wrong[i].tv_sec, wrong[i].tv_nsec };
        errno = 0;
        check(ppoll(entries, 2, &wrong[i], NULL) == -1 && errno == EINVAL);
        errno = 0;
        check(pselect(ends[0] + 1, &reads, NULL, NULL, &wrong[i], NULL) == -1 && errno == EINVAL);
        errno = 0;
        check(epoll_pwait2(set, &event, 1, &wrong[i], NULL) == -1);
        check(errno == EINVAL || errno == ENOSYS); /* an older kernel */
        if (time.tv_usec >= 1000000)               /* which is a time to select */
            continue;
        errno = 0;
        check(select(ends[0] + 1, &reads, NULL, NULL, &time) == -1 && errno == EINVAL);
    }
    check(FD_ISSET(listener, &reads) && FD_ISSET(ends[0], &reads));
    struct timeval time = { 0, 2000000 };
    check(select(ends[0] + 1, &reads, NULL, NULL, &time) == 1 && FD_ISSET(ends[0], &reads));
    ends_all(1);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "cancel_at_once", is_cancelled_at_once }, { "cancel_later", is_cancelled_later },
        { "vfork_set", child_closes_set },          { "cloexec_set", marks_set },
        { "vfork_all", child_closes_all },          { "wrong_time", times_are_wrong },
        { "vfork_edit", child_edits_set },          { "renew_set", renewal_fails },
        { "renew_all", renewal_often_fails },       { "late_stream", stream_is_too_late },
    };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
