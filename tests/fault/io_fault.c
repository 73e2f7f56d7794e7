/* SPDX-License-Identifier: MIT */
/*
 * io_fault.c - makes the nth system call of each kind that I/O uses fail, for every n and every error
 * that it may return. The caller receives that error once, the same call made again succeeds,
 * nothing leaks, and no thread hangs. EINTR and connections that died in the queue are not reported
 * to the caller.
 *
 * Two threads, whose kinds change, hold one conversation: by TCP, a pipe, a file and sendfile, over
 * a number that needs a new chunk of the descriptor table.
 */
#include "nth_call.h"

#include "unit/io/io_test.h"

#include <sys/sendfile.h>

#ifdef RSI_TSAN
/* By default, the sanitizer sleeps for a second at the end of each of the many children. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}
#endif

#define WORDS 3
#define BYTES 13 /* bytes of a word; the filters recognise the conversation's calls by it */
#define HIGH 5000

static const struct fault faults[] = {
    { "epoll_create1: EMFILE", SYS_epoll_create1, EMFILE, -1, 0 },
    { "epoll_create1: ENOMEM", SYS_epoll_create1, ENOMEM, -1, 0 },
    { "eventfd2: EMFILE", SYS_eventfd2, EMFILE, -1, 0 },
    { "eventfd2: ENOMEM", SYS_eventfd2, ENOMEM, -1, 0 },
    { "io_uring_setup: EPERM", SYS_io_uring_setup, EPERM, -1, 0 },
    { "io_uring_setup: ENOMEM", SYS_io_uring_setup, ENOMEM, -1, 0 },
    { "io_uring_register: EINVAL", SYS_io_uring_register, EINVAL, -1, 0 },
    { "io_uring_enter: EINTR", SYS_io_uring_enter, EINTR, -1, 0 },
    { "io_uring_enter: EAGAIN", SYS_io_uring_enter, EAGAIN, -1, 0 },
    { "epoll_ctl: ENOMEM", SYS_epoll_ctl, ENOMEM, -1, 0 },
    { "epoll_ctl: ENOSPC", SYS_epoll_ctl, ENOSPC, -1, 0 },
#if !defined(RSI_ASAN) && !defined(RSI_TSAN) /* whose allocators map as much at a time */
    { "mmap of the table: ENOMEM", SYS_mmap, ENOMEM, 1, RSI_FD_CHUNK * sizeof(struct rsi_fd) },
#endif
    { "fstat: ENOMEM", SYS_fstat, ENOMEM, -1, 0 },
    { "getsockopt: ENOBUFS", SYS_getsockopt, ENOBUFS, 2, SO_TYPE },
    { "fcntl: EPERM", SYS_fcntl, EPERM, 1, F_SETFL },
    { "accept4: EMFILE", SYS_accept4, EMFILE, -1, 0 },
    { "accept4: ENFILE", SYS_accept4, ENFILE, -1, 0 },
    { "accept4: ENOBUFS", SYS_accept4, ENOBUFS, -1, 0 },
    { "accept4: ENOMEM", SYS_accept4, ENOMEM, -1, 0 },
    { "accept4: EINTR", SYS_accept4, EINTR, -1, 0 },
    { "accept4: ECONNABORTED", SYS_accept4, ECONNABORTED, -1, 0 },
    { "connect: EINTR", SYS_connect, EINTR, -1, 0 },
    { "connect: EADDRNOTAVAIL", SYS_connect, EADDRNOTAVAIL, -1, 0 },
    { "recvfrom: EINTR", SYS_recvfrom, EINTR, 2, BYTES },
    { "recvfrom: ENOMEM", SYS_recvfrom, ENOMEM, 2, BYTES },
    { "sendto: EINTR", SYS_sendto, EINTR, 2, BYTES },
    { "sendto: ENOBUFS", SYS_sendto, ENOBUFS, 2, BYTES },
    { "read: EINTR", SYS_read, EINTR, 2, BYTES },
    { "read: EIO", SYS_read, EIO, 2, BYTES },
    { "write: EINTR", SYS_write, EINTR, 2, BYTES },
    { "write: ENOSPC", SYS_write, ENOSPC, 2, BYTES },
    { "sendfile: EINTR", SYS_sendfile, EINTR, -1, 0 },
    { "sendfile: ENOMEM", SYS_sendfile, ENOMEM, -1, 0 },
    { "pread64: EINTR", SYS_pread64, EINTR, 2, BYTES },
    { "pread64: EIO", SYS_pread64, EIO, 2, BYTES },
    { "fsync: EIO", SYS_fsync, EIO, -1, 0 },
    { "ppoll: EINTR", SYS_ppoll, EINTR, -1, 0 },
    { "ppoll: ENOMEM", SYS_ppoll, ENOMEM, -1, 0 },
    { "epoll_pwait: EINTR", SYS_epoll_pwait, EINTR, -1, 0 },
    { "epoll_pwait2: EINTR", SYS_epoll_pwait2, EINTR, -1, 0 },
    { "epoll_pwait2: ENOSYS", SYS_epoll_pwait2, ENOSYS, -1, 0 },
    { "clone3 of a helper: EAGAIN", SYS_clone3, EAGAIN, -1, 0 },
};

static struct {
    const struct fault *fault;
    struct sockaddr_in address;
    int listener, pipe[2], high_pipe, file;
    uint32_t error_returns; /* how often a call returned the error */
} scene;

static bool is_hidden_from_caller(int error)
{
    return error == EINTR || error == ECONNABORTED || error == ENOSYS;
}

/* Whether result is the injected error, so that the call must be made again. */
static bool was_injected(long result)
{
    if (result != -scene.fault->error || is_hidden_from_caller(scene.fault->error))
        return false;
    rsi_fetch_add_relaxed(&scene.error_returns, 1u);
    return true;
}

#define CALL(expected, call) \
    do { \
        long call_result; \
        do \
            call_result = (call); \
        while (was_injected(call_result)); \
        EQUALS(call_result, (expected)); \
    } while (0)

static void word_make(char word[BYTES], unsigned number)
{
    snprintf(word, BYTES, "word %u", number);
}

static void word_check(const char *word, unsigned number)
{
    char wanted[BYTES];
    word_make(wanted, number);
    if (strncmp(word, wanted, BYTES) != 0)
        fprintf(stderr, "'%.*s' instead of '%s'\n", BYTES, word, wanted);
    CHECK(strncmp(word, wanted, BYTES) == 0);
}

static void ask(void)
{
    char word[BYTES] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CALL(0, rouse_connect(fd, (struct sockaddr *)&scene.address, sizeof scene.address));
    for (unsigned i = 0; i < WORDS; i++) {
        word_make(word, i);
        CALL(BYTES, rouse_send(fd, word, BYTES, 0));
        CALL(BYTES, rouse_recv(fd, word, BYTES, 0));
        word_check(word, i + 100);
        CALL(BYTES, rouse_read(scene.high_pipe, word, BYTES));
        word_check(word, i + 200);
        CALL(BYTES, rouse_read_until(fd, word, BYTES, rouse_now_ns() + 1000 * SECOND));
        word_check(word, 300);
    }
    CALL(0, rouse_recv(fd, word, BYTES, 0));
    EQUALS(rouse_close(fd), 0);
}

static void answer(void)
{
    const int on = 1;
    char word[BYTES];
    int fd;
    do
        fd = rouse_accept(scene.listener, NULL, NULL);
    while (was_injected(fd));
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    for (unsigned i = 0; i < WORDS; i++) {
        off_t offset = 0;
        CALL(BYTES, rouse_recv(fd, word, BYTES, 0));
        word_check(word, i);
        word_make(word, i + 100);
        CALL(BYTES, rouse_send(fd, word, BYTES, 0));
        word_make(word, i + 200);
        CALL(BYTES, rouse_write(scene.pipe[1], word, BYTES));
        CALL(BYTES, rouse_pread(scene.file, word, BYTES, 0));
        word_check(word, 300);
        CALL(0, rouse_fsync(scene.file));
        CALL(BYTES, rouse_sendfile(fd, scene.file, &offset, BYTES));
    }
    EQUALS(rouse_close(fd), 0);
}

static void take_part(void *arg, unsigned index)
{
    (void)arg;
    if (index == 0)
        answer();
    else
        ask();
}

/* Two threads of these kinds hold the conversation. */
static void hold(enum crew_kind answering, enum crew_kind asking)
{
    static struct crew crew;
    crew.count = 0;
    (void)crew_add(&crew, answering, take_part, NULL);
    (void)crew_add(&crew, asking, take_part, NULL);
    crew_join(&crew);
}

static void scene_open(const struct fault *fault)
{
    char word[BYTES];
    scene.fault = fault;
    scene.listener = tcp_listen(4, &scene.address);
    wire_open(WIRE_PIPE, scene.pipe);
    scene.high_pipe = fcntl(scene.pipe[0], F_DUPFD_CLOEXEC, HIGH);
    scene.file = memfd_create("file", MFD_CLOEXEC);
    word_make(word, 300);
    CHECK(scene.high_pipe >= HIGH && scene.file >= 0);
    CHECK(pwrite(scene.file, word, BYTES, 0) == BYTES);
}

static void scene_close(void)
{
    EQUALS(rouse_close(scene.listener), 0);
    EQUALS(rouse_close(scene.high_pipe), 0);
    EQUALS(rouse_close(scene.file), 0);
    wire_close(scene.pipe);
}

static void in_child(const struct fault *fault)
{
    (void)rouse_thread_self(); /* other tests cover failures of the runtime's start */
    unsigned before = open_descriptors();
    scene_open(fault);
    nth_call_arm(true);
    hold(CREW_USER, CREW_USER);
    hold(CREW_KERNEL, CREW_USER);
    hold(CREW_USER, CREW_FOREIGN);
    nth_call_arm(false);
    CHECK(scene.error_returns <= 1);
    hold(CREW_USER, CREW_KERNEL);
    scene_close();
    EQUALS(open_descriptors(), before);
}

static void each_call_fails_once(void **state)
{
    (void)state;
    nth_call_each(faults, LENGTH(faults), in_child);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_call_fails_once) };
    if (nth_call_is_refused(&faults[0]))
        return 77;
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
