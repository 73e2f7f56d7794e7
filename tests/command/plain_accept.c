/* SPDX-License-Identifier: MIT */
/*
 * plain_accept.c - as plain.c, for listeners that several processes wait for: what calls return to one whose turn it is
 * not, and what becomes of a turn whose process stops or dies. The checks hold with an order and without.
 */
#include "plain_accept.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum {
    SHORT_MS = 30,
    REFUSED = 3, /* calls that were ended by a signal */
    THREADS = 300,
};

/* Who waits first has the turn, where there is one. */
static void stops(bool by_poll)
{
    listens(by_poll ? SOCK_NONBLOCK : 0);
    pid_t first = server(by_poll), second = server(by_poll);
    check(kill(first, SIGSTOP) == 0);
    until_process(first, 'T');
    /* A wake-up that went to the one that is stopped comes with the next connection. */
    int fds[2] = { connects(), connects() };
    check(ask(fds[0], 'c') == second && ask(fds[1], 'c') == second);
    check(ask(connects(), 'c') == second);
    check(kill(first, SIGCONT) == 0);
    until_process(first, 'S');
    ask(connects(), 'c');
    ends_all(2);
}

static void stops_in_poll(void)
{
    stops(true);
}

static void stops_in_accept(void)
{
    stops(false);
}

static void dies(void)
{
    int status;
    listens(SOCK_NONBLOCK);
    pid_t first = server(true), second = server(true);
    check(kill(first, SIGKILL) == 0 && waitpid(first, &status, 0) == first);
    check(ask(connects(), 'c') == second);
    ends_all(1);
}

static volatile sig_atomic_t signals;
static bool is_taken; /* main has its connection */

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void catches(int flags)
{
    struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };
    check(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* To main, as soon as it sleeps. */
static void *signal_main(void *unused)
{
    const pid_t main_tid = getpid();
    until_sleeps(&main_tid);
    check(kill(main_tid, SIGUSR1) == 0);
    return unused;
}

static void *write_when_main_sleeps(void *unused)
{
    const pid_t main_tid = getpid();
    until_sleeps(&main_tid);
    check(write(ends[1], "x", 1) == 1);
    return unused;
}

static void *connect_after_signal(void *unused)
{
    const pid_t main_tid = getpid();
    signal_main(unused);
    while (signals == 0)
        nap();
    until_sleeps(&main_tid);
    while (!__atomic_load_n(&is_taken, __ATOMIC_ACQUIRE)) { /* the other process takes some */
        close(connects());
        nap();
    }
    return unused;
}

/* What comes back to one that waits while another process has the turn. */
static void waits_behind(void)
{
    struct pollfd entries[2];
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };
    struct timeval little = { 0, SHORT_MS * 1000 };
    const struct timespec moment = { 0, SHORT_MS * 1000000 };
    pthread_t thread;
    fd_set reads;
    char byte;
    listens(SOCK_NONBLOCK);
    pid_t first = server(true);
    entries[0] = (struct pollfd){ listener, POLLIN, POLLIN };
    entries[1] = (struct pollfd){ ends[0], POLLIN, POLLHUP };

    long begin = ms_now();
    check(poll(entries, 1, SHORT_MS) == 0 && ms_now() - begin >= SHORT_MS);
    check(entries[0].revents == 0 && entries[1].revents == POLLHUP); /* which was not asked for */
    entries[0].revents = POLLIN;
    check(ppoll(entries, 2, &moment, NULL) == 0);
    check(entries[0].revents == 0 && entries[1].revents == 0);
    FD_ZERO(&reads);
    FD_SET(listener, &reads);
    check(select(listener + 1, &reads, NULL, NULL, &little) == 0);
    check(!FD_ISSET(listener, &reads) && little.tv_sec == 0 && little.tv_usec == 0);

    beside(write_when_main_sleeps, &thread);
    check(poll(entries, 2, -1) == 1 && entries[0].revents == 0 && entries[1].revents == POLLIN);
    join(&thread, 1);
    check(poll(entries, 2, 0) == 1 && entries[1].revents == POLLIN);
    FD_SET(listener, &reads);
    FD_SET(ends[0], &reads);
    check(select(ends[0] + 1, &reads, NULL, NULL, NULL) == 1 && !FD_ISSET(listener, &reads));
    check(FD_ISSET(ends[0], &reads) && read(ends[0], &byte, 1) == 1);

    int set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    check(epoll_wait(set, &event, 1, SHORT_MS) == 0);
    event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 8 };
    check(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == 0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == -1 && errno == EEXIST);
    check(kill(first, SIGSTOP) == 0);
    until_process(first, 'T');
    int fd = connects();
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 8);
    int got = accept(listener, NULL, NULL);
    check(got >= 0 && close(got) == 0 && close(fd) == 0);
    check(accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
    check(epoll_ctl(set, EPOLL_CTL_DEL, listener, &event) == 0 && close(set) == 0);
    check(kill(first, SIGCONT) == 0);
    until_process(first, 'S');
    ends_all(1);
}

static void is_interrupted(void)
{
    struct pollfd entry;
    pthread_t thread;
    listens(SOCK_NONBLOCK);
    (void)server(true);
    entry = (struct pollfd){ listener, POLLIN, 0 };
    for (int i = 0; i < REFUSED; i++) {
        catches(i == 0 ? SA_RESTART : 0); /* which poll does not know */
        beside(signal_main, &thread);
        errno = 0;
        entry.revents = POLLIN;
        check(i < 2 ? poll(&entry, 1, -1) == -1 : ppoll(&entry, 1, NULL, NULL) == -1);
        check(errno == EINTR && signals == i + 1 && entry.revents == 0);
        join(&thread, 1);
    }
    ends_all(1);
}

static void accept_is_interrupted(void)
{
    struct timeval little = { 0, SHORT_MS * 1000 };
    pthread_t thread;
    listens(0);
    (void)server(false);
    catches(0);
    beside(signal_main, &thread);
    errno = 0;
    check(accept(listener, NULL, NULL) == -1 && errno == EINTR && signals == 1);
    join(&thread, 1);
    signals = 0;
    catches(SA_RESTART);
    beside(connect_after_signal, &thread);
    int fd = accept(listener, NULL, NULL);
    __atomic_store_n(&is_taken, true, __ATOMIC_RELEASE);
    check(fd >= 0 && signals == 1);
    join(&thread, 1);
    check(close(fd) == 0);
    check(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little) == 0);
    long begin;
    for (fd = 0; fd >= 0;) { /* one that came late for us to take may be there yet */
        begin = ms_now();
        errno = 0;
        fd = accept(listener, NULL, NULL);
        check(fd < 0 || close(fd) == 0);
    }
    check(errno == EAGAIN && ms_now() - begin >= SHORT_MS);
    little.tv_usec = 0;
    check(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little) == 0);
    ends_all(1);
}

static void *be_cancelled(void *unused)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    here(0);
    check(poll(&entry, 1, -1) < 0); /* until cancelled */
    return unused;
}

static void is_cancelled(void)
{
    pthread_t thread;
    listens(SOCK_NONBLOCK);
    pid_t first = server(true);
    start(&thread, 1, be_cancelled);
    until_sleeps(&tids[0]);
    check(pthread_cancel(thread) == 0);
    join(&thread, 1);
    check(ask(connects(), 'c') == first && ask(connects(), 'c') == first);
    ends_all(1);
}

static void *poll_and_end(void *unused)
{
    struct pollfd entries[2] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    check(poll(entries, 2, 1) == 0);
    return unused;
}

/* More than can wait at once: what each has is given back, and its turn. */
static void threads_end(void)
{
    struct pollfd entry;
    int before = 0;
    pthread_t thread;
    listens(SOCK_NONBLOCK);
    for (int i = 0; i < THREADS; i++) {
        beside(poll_and_end, &thread);
        join(&thread, 1);
        if (i == 0)
            before = open_descriptors();
    }
    check(open_descriptors() == before);
    int fd = connects();
    entry = (struct pollfd){ listener, POLLIN, 0 };
    check(poll(&entry, 1, -1) == 1);
    int got = accept(listener, NULL, NULL);
    check(got >= 0 && close(got) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "stop_poll", stops_in_poll },
                                           { "stop_accept", stops_in_accept },
                                           { "die", dies },
                                           { "behind", waits_behind },
                                           { "interrupt", is_interrupted },
                                           { "interrupt_accept", accept_is_interrupted },
                                           { "cancel", is_cancelled },
                                           { "end", threads_end } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
