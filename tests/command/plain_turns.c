/* SPDX-License-Identifier: MIT */
/*
 * plain_turns.c - as plain_accept.c: listeners that are passed by exec, closed, shut down, and waited for with others,
 * and servers that are killed at any moment. A scene that hangs is ended by its test.
 */
#include "plain_accept.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/select.h>

enum {
    LONG_MS = 10000,
    EXECS = 270, /* more than there are places */
    KILLS = 20,
    ASKED = 10,
    POLLERS = 8,
    OURS_FROM = 900, /* descriptors that are not the program's */
    PLACES_AT = 4096,
    PLACES = 256,
};

/* B waits longest, and each time another has come after it. */
static void one_is_passed_over(void)
{
    listens(SOCK_NONBLOCK);
    pid_t first = server(true), passed = server(true), last = server(true);
    long begin = ms_now();
    while (ask(connects(), 'c') != passed) {
        check(ms_now() - begin < LONG_MS);
        until_process(first, 'S');
        until_process(last, 'S');
    }
    ends_all(3);
}

static void runs_itself(const char *scene, int number)
{
    char text[2][16];
    snprintf(text[0], sizeof text[0], "%d", listener);
    snprintf(text[1], sizeof text[1], "%d", number);
    execl("/proc/self/exe", "plain_turns", scene, text[0], text[1], NULL);
    check(false);
}

static void passes_to_others(void)
{
    listens(SOCK_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork_bound();
        if (pid == 0)
            runs_itself("inherited", 0);
        until_process(pid, 'S');
    }
    for (int i = 0; i < ASKED; i++)
        ask(connects(), 'c');
    ends_all(2);
}

/* Each program is told of the connection, and leaves it to the next that takes its place. */
static void runs_again(int left)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    check(poll(&entry, 1, -1) == 1);
    if (left > 0)
        runs_itself("again", left - 1);
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0 && close(fd) == 0);
}

static void runs_others(void)
{
    listens(SOCK_NONBLOCK);
    (void)connects();
    runs_again(EXECS);
}

static void dies_waiting(void)
{
    int status;
    listens(SOCK_NONBLOCK);
    (void)server(true);
    pid_t second = server(true);
    (void)server(true);
    check(kill(second, SIGKILL) == 0 && waitpid(second, &status, 0) == second);
    for (int i = 0; i < 4; i++)
        ask(connects(), 'c');
    ends_all(2);
}

/* The kernel still knows it. */
static void dies_unreaped(void)
{
    int status;
    listens(SOCK_NONBLOCK);
    pid_t first = server(true), second = server(true);
    check(kill(first, SIGKILL) == 0);
    until_process(first, 'Z');
    for (int i = 0; i < 4; i++)
        check(ask(connects(), 'c') == second);
    check(waitpid(first, &status, 0) == first);
    ends_all(1);
}

static void all_die(void)
{
    int status;
    pid_t group = 0, pid;
    listens(SOCK_NONBLOCK);
    for (int i = 0; i < 3; i++) {
        pid = server(true);
        group = group ? group : pid;
        check(setpgid(pid, group) == 0);
    }
    check(kill(-group, SIGKILL) == 0);
    for (int i = 0; i < 3; i++)
        check(wait(&status) > 0);
    pid = server(true);
    check(ask(connects(), 'c') == pid && ask(connects(), 'c') == pid);
    ends_all(1);
}

/* At any moment of taking a connection, of three that are there at once. */
static void any_dies(void)
{
    char byte = 'c';
    pid_t pids[3], answer;
    int status, fds[3];
    listens(SOCK_NONBLOCK);
    for (int i = 0; i < 3; i++)
        pids[i] = server(true);
    for (int i = 0; i < KILLS; i++) {
        for (int j = 0; j < 3; j++) {
            fds[j] = connects();
            check(send(fds[j], &byte, 1, MSG_NOSIGNAL) == 1 || errno == EPIPE);
        }
        check(kill(pids[i % 3], SIGKILL) == 0);
        for (int j = 0; j < 3; j++) { /* an answer, or none of who is dead */
            check(read(fds[j], &answer, sizeof answer) >= 0 || errno == ECONNRESET);
            close(fds[j]);
        }
        check(waitpid(pids[i % 3], &status, 0) == pids[i % 3]);
        if ((pids[i % 3] = fork_bound()) == 0)
            serve(true);
    }
    ends_all(3);
}

/* Has been told of a connection, and does not take it. */
static void closes_when_told(void)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    check(poll(&entry, 1, -1) == 1 && close(listener) == 0);
    for (;;)
        pause();
}

static void one_closes(void)
{
    int status;
    listens(SOCK_NONBLOCK);
    pid_t first = fork_bound();
    if (first == 0)
        closes_when_told();
    until_process(first, 'S');
    pid_t second = server(true);
    check(ask(connects(), 'c') == second && ask(connects(), 'c') == second);
    check(kill(first, SIGKILL) == 0 && waitpid(first, &status, 0) == first);
    ends_all(1);
}

static int second;

static void *connect_second(void *unused)
{
    struct sockaddr_un its;
    socklen_t bytes = sizeof its;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    until_process(getpid(), 'S');
    check(getsockname(second, (struct sockaddr *)&its, &bytes) == 0);
    check(connect(fd, (struct sockaddr *)&its, bytes) == 0);
    return unused;
}

/* Another process has the turn of the first, and does not know of the second. */
static void two_are_waited_for(void)
{
    struct sockaddr_un its = { .sun_family = AF_UNIX };
    struct timeval little = { LONG_MS / 1000, 0 };
    struct pollfd entries[2];
    pthread_t thread;
    fd_set reads;
    listens(SOCK_NONBLOCK);
    second = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    check(bind(second, (struct sockaddr *)&its, sizeof its.sun_family) == 0);
    check(listen(second, 16) == 0);
    (void)server(true);
    entries[0] = (struct pollfd){ listener, POLLIN, 0 };
    entries[1] = (struct pollfd){ second, POLLIN, 0 };
    beside(connect_second, &thread);
    check(poll(entries, 2, LONG_MS) == 1 && entries[1].revents == POLLIN);
    join(&thread, 1);
    check(accept(second, NULL, NULL) >= 0);
    FD_ZERO(&reads);
    FD_SET(listener, &reads);
    FD_SET(second, &reads);
    beside(connect_second, &thread);
    check(select(second + 1, &reads, NULL, NULL, &little) == 1 && FD_ISSET(second, &reads));
    join(&thread, 1);
    check(accept(second, NULL, NULL) >= 0);
    ends_all(1);
}

static unsigned ended;

static void *poll_until_shut_down(void *i)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    here((unsigned)(uintptr_t)i);
    check(poll(&entry, 1, -1) == 1 && entry.revents & POLLHUP);
    __atomic_add_fetch(&ended, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) < POLLERS)
        nap();
    return i;
}

/* As servers tell their threads to end, which do not call accept any more. */
static void is_shut_down(void)
{
    pthread_t threads[POLLERS];
    listens(SOCK_NONBLOCK);
    start(threads, POLLERS, poll_until_shut_down);
    for (int i = 0; i < POLLERS; i++)
        until_waits(&tids[i]);
    check(shutdown(listener, SHUT_RDWR) == 0);
    join(threads, POLLERS);
}

/* The lowest descriptor that is not the program's; -1: there is none. */
static int foreign(void)
{
    int found = -1;
    DIR *folder = opendir("/proc/self/fd");
    check(folder != NULL);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (fd >= OURS_FROM && (found < 0 || fd < found))
            found = fd;
    }
    closedir(folder);
    return found;
}

static void *close_all_and_reuse(void *unused)
{
    char byte = 'x';
    int fds[2];
    until_process(getpid(), 'S');
    int number = foreign();
    if (number >= 0) {
        long switches = switches_of(getpid());
        check(close_range(OURS_FROM, ~0U, 0) == 0);
        check(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0);
        check(dup2(fds[0], number) == number && send(fds[1], &byte, 1, 0) == 1);
        while (switches_of(getpid()) < switches + 3) /* it looks, now and then */
            nap();
        check(recv(fds[0], &byte, 1, MSG_DONTWAIT) == 1);
    }
    check(write(ends[1], "x", 1) == 1);
    return unused;
}

static void all_are_closed(void)
{
    struct pollfd entries[2];
    pthread_t thread;
    listens(SOCK_NONBLOCK);
    pid_t first = server(true);
    entries[0] = (struct pollfd){ listener, POLLIN, 0 };
    entries[1] = (struct pollfd){ ends[0], POLLIN, 0 };
    beside(close_all_and_reuse, &thread);
    check(poll(entries, 2, -1) == 1 && entries[1].revents == POLLIN);
    join(&thread, 1);
    check(ask(connects(), 'c') == first);
    ends_all(1);
}

static void *wait_for(void *fd)
{
    struct pollfd entry = { *(int *)fd, POLLIN, 0 };
    (void)poll(&entry, 1, -1);
    return NULL;
}

/* Whoever gives a turn knows a place by its number, whatever queue that has gone to since. */
static void numbers_differ(void)
{
    char path[320];
    uint64_t place[8], numbers[2] = { 0 };
    unsigned count = 0;
    pthread_t threads[2];
    const char *folder = getenv("ROUSE_OBS_DIR");
    listens(SOCK_NONBLOCK);
    second = listener;
    address.sun_path[1] = 'P'; /* of another name */
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    check(listen(listener, 16) == 0);
    check(pthread_create(&threads[0], NULL, wait_for, &listener) == 0);
    check(pthread_create(&threads[1], NULL, wait_for, &second) == 0);
    snprintf(path, sizeof path, "%s/accept", folder ? folder : "");
    while (count < 2 && getenv("ROUSE_RUN_ACCEPT")) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        count = 0;
        for (int i = 0; i < PLACES && count < 2; i++) {
            check(pread(fd, place, sizeof place, PLACES_AT + i * (off_t)sizeof place) ==
                  sizeof place);
            if (place[0] && place[1])
                numbers[count++] = place[1];
        }
        close(fd);
        nap();
    }
    check(count == 0 || numbers[0] != numbers[1]);
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "promote", one_is_passed_over }, { "pass", passes_to_others },
        { "exec", runs_others },           { "die_waiting", dies_waiting },
        { "die_unreaped", dies_unreaped }, { "die_all", all_die },
        { "die_any", any_dies },           { "close", one_closes },
        { "two", two_are_waited_for },     { "shutdown", is_shut_down },
        { "close_all", all_are_closed },   { "numbers", numbers_differ },
    };
    if (argc == 4) {
        listener = atoi(argv[2]);
        if (strcmp(argv[1], "inherited") == 0)
            serve(true);
        runs_again(atoi(argv[3]));
        return 0;
    }
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
