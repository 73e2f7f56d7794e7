/* SPDX-License-Identifier: MIT */
/*
 * plain_answers.c - as plain.c: calls with arguments that are hardly any, each with what it says and what it leaves,
 * which is the same with the library and without; and calls that wait, and end in the midst of it.
 */
#include "plain.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>

static const struct timespec times[] = { { 0, 0 }, { -1, 0 }, { 0, -1 }, { 0, 2000000000 } };
static const clockid_t clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, 77 };
enum {
    WRONG = 2, /* and above: times that are none */
    TIMES = sizeof times / sizeof *times,
    CLOCKS = sizeof clocks / sizeof *clocks,
    NO_CLOCK = CLOCKS, /* the call that takes none */
};

static int may_end;

/* Each takes an object that is free or not, and tells of it afterwards. */
typedef int answer(bool is_free, int clock, const struct timespec *until, int *after);

static int of_mutex(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (!is_free)
        pthread_mutex_lock(&mutex);
    int result = clock == NO_CLOCK ? pthread_mutex_timedlock(&mutex, until)
                                   : pthread_mutex_clocklock(&mutex, clocks[clock], until);
    *after = pthread_mutex_trylock(&mutex);
    return result;
}

static int of_reader(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    if (!is_free)
        pthread_rwlock_wrlock(&lock);
    int result = clock == NO_CLOCK ? pthread_rwlock_timedrdlock(&lock, until)
                                   : pthread_rwlock_clockrdlock(&lock, clocks[clock], until);
    *after = pthread_rwlock_trywrlock(&lock);
    return result;
}

static int of_writer(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    if (!is_free)
        pthread_rwlock_rdlock(&lock);
    int result = clock == NO_CLOCK ? pthread_rwlock_timedwrlock(&lock, until)
                                   : pthread_rwlock_clockwrlock(&lock, clocks[clock], until);
    *after = pthread_rwlock_tryrdlock(&lock);
    return result;
}

static int of_semaphore(bool is_free, int clock, const struct timespec *until, int *after)
{
    sem_t sem;
    sem_init(&sem, 0, is_free);
    int result = clock == NO_CLOCK ? sem_timedwait(&sem, until)
                                   : sem_clockwait(&sem, clocks[clock], until);
    result = result == 0 ? 0 : errno;
    sem_getvalue(&sem, after);
    return result;
}

static void *ends_when_told(void *unused)
{
    here(0);
    while (!__atomic_load_n(&may_end, __ATOMIC_ACQUIRE))
        nap();
    return unused;
}

/* Free: it has ended, as the kernel says, which has told libc before. */
static int of_join(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_t thread;
    __atomic_store_n(&may_end, is_free, __ATOMIC_RELEASE);
    start(&thread, 1, ends_when_told);
    pid_t tid;
    while ((tid = __atomic_load_n(&tids[0], __ATOMIC_ACQUIRE)) == 0)
        nap();
    while (is_free && syscall(SYS_tgkill, getpid(), tid, 0) == 0)
        nap();
    int result = clock == NO_CLOCK ? pthread_timedjoin_np(thread, NULL, until)
                                   : pthread_clockjoin_np(thread, NULL, clocks[clock], until);
    *after = result != 0;
    __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
    if (result != 0)
        join(&thread, 1);
    return result;
}

static void all_times(void)
{
    static const struct {
        const char *name;
        answer *fn;
    } rows[] = { { "mutex", of_mutex },
                 { "reader", of_reader },
                 { "writer", of_writer },
                 { "semaphore", of_semaphore },
                 { "join", of_join } };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        for (int is_free = 0; is_free < 2; is_free++)
            for (int clock = 0; clock <= NO_CLOCK; clock++)
                for (int time = 0; time < TIMES; time++) {
                    if (rows[row].fn == of_join && !is_free && time >= WRONG)
                        continue; /* for which libc tries again, for ever */
                    int after = 0, said = rows[row].fn(is_free, clock, &times[time], &after);
                    printf("%s %s clock %d time %d: %s, %d after\n", rows[row].name,
                           is_free ? "free" : "held", clock, time,
                           said ? strerrorname_np(said) : "0", after);
                }
}

static void says(const char *name, int result)
{
    printf("%s: %d %s\n", name, result, result < 0 ? strerrorname_np(errno) : "");
}

/* Also by a thread that has found nothing on a descriptor, whose polls are another case. */
static void all_memory(void)
{
    void *volatile nowhere = (void *)8;
    int ends[2];
    char byte;
    check(pipe2(ends, O_NONBLOCK) == 0);
    for (int i = 0; i < 2; i++) {
        struct timeval time = { 1, 0 };
        const struct timespec second = { 1, 0 };
        says("poll", poll(nowhere, 1, 100));
        says("polls", poll(nowhere, 2, 100));
        says("ppoll", ppoll(nowhere, 1, &second, NULL));
        says("select", select(5, nowhere, NULL, NULL, &time));
        says("pselect", pselect(5, NULL, NULL, nowhere, &second, NULL));
        check(read(ends[0], &byte, 1) == -1 && errno == EAGAIN);
    }
}

static int ends[2], gate[2];
static bool has_handled, has_ended;

/* Where it is found asleep when its call has ended: not before the gate is opened. */
static void pass_gate(void)
{
    char byte;
    check(read(gate[0], &byte, 1) == 1);
}

static void open_gate(void)
{
    check(write(gate[1], "", 1) == 1);
}

static void *read_low(void *by_read)
{
    char bytes[64];
    here(0);
    ssize_t got = by_read ? read(ends[0], bytes, sizeof bytes) : recv(ends[0], bytes, 64, 0);
    says(by_read ? "read" : "recv", (int)got);
    pass_gate();
    return NULL;
}

/* A socket that asks for ten bytes, of which one is there. */
static void all_low(void)
{
    int ten = 10, got;
    pthread_t thread;
    check(pipe(gate) == 0);
    for (uintptr_t by_read = 0; by_read < 2; by_read++) {
        tids[0] = 0;
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        check(setsockopt(ends[0], SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten) == 0);
        check(write(ends[1], "a", 1) == 1);
        check(pthread_create(&thread, NULL, read_low, (void *)by_read) == 0);
        until_sleeps(&tids[0]);
        check(write(ends[1], "bcdefghij", 9) == 9);
        open_gate();
        join(&thread, 1);
        check(ioctl(ends[0], FIONREAD, &got) == 0);
        says("left", got);
    }
}

/* The main thread has sent a part, and sleeps. */
static void until_sends(void)
{
    const pid_t sender = getpid();
    int got = 0;
    while (got == 0) {
        nap();
        check(ioctl(ends[0], FIONREAD, &got) == 0);
    }
    until_sleeps(&sender);
}

static int listen_at(struct sockaddr_in *to)
{
    socklen_t bytes = sizeof *to;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *to = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    check(bind(listener, (struct sockaddr *)to, bytes) == 0 && listen(listener, 5) == 0);
    check(getsockname(listener, (struct sockaddr *)to, &bytes) == 0);
    return listener;
}

static char many[1 << 24];

static void says_part(const char *name, ssize_t result)
{
    bool is_part = result > 0 && result < (ssize_t)sizeof many;
    says(name, is_part ? 1 : (int)result);
}

static void *reset(void *unused)
{
    until_sends();
    check(close(ends[0]) == 0); /* what it has not read makes it a reset */
    return unused;
}

static void all_resets(void)
{
    struct sockaddr_in to;
    pthread_t thread;
    int listener = listen_at(&to);
    signal(SIGPIPE, SIG_IGN);
    for (int by_send = 0; by_send < 2; by_send++) {
        ends[1] = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(ends[1], (struct sockaddr *)&to, sizeof to) == 0);
        check((ends[0] = accept(listener, NULL, NULL)) >= 0);
        check(pthread_create(&thread, NULL, reset, NULL) == 0);
        for (int i = 0; i < 3; i++)
            says_part(by_send ? "send" : "write", by_send ? send(ends[1], many, sizeof many, 0)
                                                          : write(ends[1], many, sizeof many));
        join(&thread, 1);
        check(close(ends[1]) == 0);
    }
}

static void note(int number)
{
    (void)number;
    __atomic_store_n(&has_handled, true, __ATOMIC_RELEASE);
}

static void *interrupt(void *sender)
{
    static char bytes[65536];
    const pid_t tid = getpid();
    until_sends();
    check(pthread_kill(*(pthread_t *)sender, SIGUSR1) == 0);
    while (!__atomic_load_n(&has_handled, __ATOMIC_ACQUIRE))
        nap();
    until_sleeps(&tid); /* at the gate; or in its call still, which then ends */
    open_gate();
    while (!__atomic_load_n(&has_ended, __ATOMIC_ACQUIRE))
        if (recv(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) < 0)
            nap();
    return NULL;
}

/* A send of which a part is done ends by a signal, whatever the signal's flags, and by its time. */
static void all_signals(void)
{
    struct timeval little = { 0, 3000 };
    pthread_t thread, self = pthread_self();
    check(pipe(gate) == 0);
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = { .sa_handler = note, .sa_flags = restarts ? SA_RESTART : 0 };
        check(sigaction(SIGUSR1, &action, NULL) == 0);
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        has_handled = has_ended = false;
        check(pthread_create(&thread, NULL, interrupt, &self) == 0);
        ssize_t result = send(ends[1], many, sizeof many, 0);
        pass_gate();
        says_part("send", result);
        __atomic_store_n(&has_ended, true, __ATOMIC_RELEASE);
        join(&thread, 1);
    }
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    check(setsockopt(ends[1], SOL_SOCKET, SO_SNDTIMEO, &little, sizeof little) == 0);
    says_part("in time", write(ends[1], many, sizeof many));
    says_part("in time", send(ends[1], many, 1, 0));
    says_part("in time", send(ends[1], many, sizeof many, 0));
}

/* Sockets that connect by what they send first; where the kernel is told not to, it says so. */
static void all_first(void)
{
    struct sockaddr_in to;
    int on = 1;
    (void)listen_at(&to);
    signal(SIGPIPE, SIG_IGN);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    says("fast", (int)sendto(ends[0], "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to));
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    check(setsockopt(ends[1], IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on) == 0);
    says("connect", connect(ends[1], (struct sockaddr *)&to, sizeof to));
    says("first", (int)write(ends[1], "hello", 5));
    says("none", (int)write(socket(AF_INET, SOCK_STREAM, 0), "hello", 5));
}

/* Streams and folders that libc closes, or will not. */
static void all_streams(void)
{
    char text[8] = "abc";
    check(unsetenv("LD_PRELOAD") == 0); /* an emulated program has no emulated shell */
    FILE *stream = popen("exit 3", "r");
    says("pclose", pclose(stream));
    says("fclose of memory", fclose(fmemopen(text, sizeof text, "r")));
    stream = fopen("/dev/null", "w");
    check(stream && fputs("lost", stream) >= 0 && close(fileno(stream)) == 0);
    says("fclose of what is closed", fclose(stream));
    stream = fopen("/dev/null", "r");
    int fd = fileno(stream);
    says("freopen to nowhere", freopen("/no/such", "r", stream) ? 0 : -1);
    says("its number", fcntl(fd, F_GETFD));
    stream = fopen("/dev/null", "r");
    fd = fileno(stream);
    says("fcloseall", fcloseall());
    says("its number", fcntl(fd, F_GETFD));
    says("freopen of the same", freopen64(NULL, "r", stream) && fileno(stream) == fd);
    DIR *volatile nowhere = NULL, *folder = opendir("/");
    says("closedir of none", closedir(nowhere));
    check(folder && close(dirfd(folder)) == 0);
    says("closedir of what is closed", closedir(folder));
}

/* Three messages of little, for calls that are right in nothing else. */
static struct mmsghdr *batch(void)
{
    static struct mmsghdr messages[3];
    static struct iovec parts[3];
    static char bytes[3][8];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 3; i++) {
        parts[i] = (struct iovec){ bytes[i], sizeof bytes[i] };
        messages[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    }
    return messages;
}

static void says_batch(const char *name, int result, const struct mmsghdr *messages)
{
    says(name, result);
    for (int i = 0; i < result; i++)
        printf("  %u bytes, flags %x\n", messages[i].msg_len, messages[i].msg_hdr.msg_flags);
}

static void wrong_batches(void)
{
    struct mmsghdr *nowhere = (void *)8, *messages = batch();
    struct timespec *bad = (void *)8;
    check(pipe(gate) == 0);
    says("recvmmsg of -1", recvmmsg(-1, messages, 2, 0, NULL));
    says("recvmmsg of a pipe", recvmmsg(gate[0], messages, 2, 0, NULL));
    says("recvmmsg of none", recvmmsg(ends[0], nowhere, 0, 0, NULL));
    says("recvmmsg to nowhere", recvmmsg(ends[0], nowhere, 2, 0, NULL));
    says("recvmmsg of no time", recvmmsg(ends[0], messages, 1, 0, bad));
    for (int time = 1; time < TIMES; time++) {
        struct timespec most = times[time];
        says("recvmmsg of a wrong time", recvmmsg(ends[0], messages, 2, MSG_DONTWAIT, &most));
    }
    says("sendmmsg to -1", sendmmsg(-1, messages, 2, 0));
    says("sendmmsg to a pipe", sendmmsg(gate[1], messages, 2, 0));
    says("sendmmsg of none", sendmmsg(ends[1], nowhere, 0, 0));
    says("sendmmsg from nowhere", sendmmsg(ends[1], nowhere, 2, 0));
}

/* The second message cannot be taken or sent, which the next call may tell. */
static void half_wrong_batches(void)
{
    struct mmsghdr *messages = batch();
    messages[1].msg_hdr.msg_iov = (void *)8;
    says_batch("sendmmsg of one", sendmmsg(ends[1], messages, 3, 0), messages);
    check(sendmmsg(ends[1], batch(), 3, 0) == 3);
    messages = batch();
    messages[1].msg_hdr.msg_iov = (void *)8;
    says_batch("recvmmsg of one", recvmmsg(ends[0], messages, 3, 0, NULL), messages);
    for (int i = 0; i < 5; i++)
        says_batch("next", recvmmsg(ends[0], batch(), 1, MSG_DONTWAIT, NULL), messages);
}

static void look_for_time(void)
{
    struct timespec wrong = times[WRONG];
    if (recvmmsg(ends[0], batch(), 1, MSG_DONTWAIT, &wrong) < 0 && errno == EAGAIN)
        not_run("recvmmsg does not look at its time, as under qemu-user");
}

static void all_batches(void)
{
    struct timeval little = { 0, 3000 };
    struct timespec most = { 0, 0 };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    look_for_time();
    wrong_batches();
    half_wrong_batches();
    check(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little) == 0);
    says("recvmmsg in time", recvmmsg(ends[0], batch(), 3, 0, NULL));
    for (int flags = 0; flags <= MSG_WAITFORONE; flags += MSG_WAITFORONE) {
        struct mmsghdr *messages = batch();
        check(sendmmsg(ends[1], messages, 2, 0) == 2);
        messages[1].msg_hdr.msg_iov->iov_len = 4;
        says_batch("recvmmsg of two", recvmmsg(ends[0], messages, 3, flags, NULL), messages);
        check(sendmmsg(ends[1], batch(), 2, 0) == 2);
        says("recvmmsg without time", recvmmsg(ends[0], batch(), 3, flags, &most));
        says("and the rest", recvmmsg(ends[0], batch(), 3, flags, NULL));
    }
    ends[0] = socket(AF_INET, SOCK_DGRAM, 0); /* to nobody, which is told by the next call */
    socklen_t bytes = sizeof to;
    ends[1] = socket(AF_INET, SOCK_DGRAM, 0);
    check(bind(ends[1], (struct sockaddr *)&to, bytes) == 0);
    check(getsockname(ends[1], (struct sockaddr *)&to, &bytes) == 0 && close(ends[1]) == 0);
    check(connect(ends[0], (struct sockaddr *)&to, bytes) == 0 && send(ends[0], "a", 1, 0) == 1);
    says("recvmmsg from nobody", recvmmsg(ends[0], batch(), 3, 0, NULL));
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "times", all_times },     { "memory", all_memory },
                                           { "low", all_low },         { "resets", all_resets },
                                           { "signals", all_signals }, { "first", all_first },
                                           { "streams", all_streams }, { "batches", all_batches } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
