/* SPDX-License-Identifier: MIT */
/*
 * io_no_wait_test.c - a call that does not have to wait returns at once, even after an earlier call
 * found nothing: calls with no bytes, with arguments that the kernel refuses, at the end of a file.
 */
#include "io_test.h"

#include <sys/mman.h>

static char eight[8];

/* A descriptor on which a call has waited: empty for ends[0], full for ends[1]. */
struct spent {
    enum wire wire;
    enum rsi_fd_side_index side;
    int ends[2];
};

static uint64_t soon(void)
{
    return rouse_now_ns() + 2 * MS;
}

/*
 * A wait without an event ends at its deadline and is not mistaken for a call that returned at
 * once.
 */
#define LONG_NS (20 * SECOND)

static uint64_t never(void)
{
    return rouse_now_ns() + LONG_NS;
}

static long read_none(struct spent *s)
{
    return rouse_read_until(s->ends[0], eight, 0, never());
}

static long readv_none(struct spent *s)
{
    struct iovec none = { eight, 0 };
    return rouse_readv_until(s->ends[0], &none, 1, never());
}

static long readv_no_vector(struct spent *s)
{
    return rouse_readv_until(s->ends[0], NULL, 0, never());
}

static long readv_null(struct spent *s)
{
    return rouse_readv_until(s->ends[0], NULL, 2, never());
}

static long recvmsg_null(struct spent *s)
{
    return rouse_recvmsg_until(s->ends[0], NULL, 0, never());
}

static long read_four(struct spent *s)
{
    return rouse_read_until(s->ends[0], eight, 4, never());
}

static long send_none(struct spent *s)
{
    return rouse_send_until(s->ends[1], eight, 0, 0, never());
}

static long sendmsg_null(struct spent *s)
{
    return rouse_sendmsg_until(s->ends[1], NULL, 0, never());
}

/* The kernel checks this argument; qemu-user does not. */
static void make_bad_control(struct msghdr *message)
{
    static struct cmsghdr control = { .cmsg_len = 1,
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS };
    static struct iovec iov = { eight, 8 };
    *message = (struct msghdr){ .msg_iov = &iov, .msg_iovlen = 1 };
    message->msg_control = &control;
    message->msg_controllen = sizeof control;
}

static bool is_bad_control_told(void)
{
    struct msghdr message;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    make_bad_control(&message);
    bool is_told = sendmsg(ends[0], &message, 0) < 0 && errno == EINVAL;
    close(ends[0]);
    close(ends[1]);
    return is_told;
}

static long sendmsg_bad_control(struct spent *s)
{
    struct msghdr message;
    if (!is_bad_control_told()) {
        puts("not run: bad control data is not told here");
        return -EINVAL;
    }
    make_bad_control(&message);
    return rouse_sendmsg_until(s->ends[1], &message, 0, never());
}

static long sendfile_of_nothing(struct spent *s)
{
    return rouse_sendfile_until(s->ends[1], -1, NULL, 8, never());
}

static long sendfile_at_its_end(struct spent *s)
{
    int file = memfd_create("empty", MFD_CLOEXEC);
    CHECK(file >= 0);
    long result = rouse_sendfile_until(s->ends[1], file, NULL, 8, never());
    close(file);
    return result;
}

static const struct {
    const char *name;
    long (*call)(struct spent *s);
    enum wire wire;
    enum rsi_fd_side_index side;
    long answer;
} calls[] = {
    { "read of nothing", read_none, WIRE_PIPE, RSI_FD_READ, 0 },
    { "read of nothing", read_none, WIRE_UNIX, RSI_FD_READ, 0 },
    { "readv of nothing", readv_none, WIRE_PIPE, RSI_FD_READ, 0 },
    { "readv without a vector", readv_no_vector, WIRE_PIPE, RSI_FD_READ, 0 },
    { "readv of NULL", readv_null, WIRE_PIPE, RSI_FD_READ, -EFAULT },
    { "readv of NULL", readv_null, WIRE_TCP, RSI_FD_READ, -EFAULT },
    { "recvmsg of NULL", recvmsg_null, WIRE_TCP, RSI_FD_READ, -EFAULT },
    { "read of four bytes", read_four, WIRE_EVENTFD, RSI_FD_READ, -EINVAL },
    { "send of nothing", send_none, WIRE_UNIX, RSI_FD_WRITE, 0 },
    { "send of nothing", send_none, WIRE_TCP, RSI_FD_WRITE, 0 },
    { "sendmsg of NULL", sendmsg_null, WIRE_TCP, RSI_FD_WRITE, -EFAULT },
    { "sendmsg with bad control data", sendmsg_bad_control, WIRE_TCP, RSI_FD_WRITE, -EINVAL },
    { "sendfile of no file", sendfile_of_nothing, WIRE_PIPE, RSI_FD_WRITE, -EBADF },
    { "sendfile of no file", sendfile_of_nothing, WIRE_TCP, RSI_FD_WRITE, -EBADF },
    { "sendfile at the end", sendfile_at_its_end, WIRE_TCP, RSI_FD_WRITE, 0 },
};

static void wait_in_vain(struct spent *s)
{
    static char much[65536];
    if (s->side == RSI_FD_READ) {
        EQUALS(rouse_read_until(s->ends[0], eight, 8, soon()), -ETIMEDOUT);
        return;
    }
    long result;
    do
        result = rouse_write_until(s->ends[1], much, sizeof much, soon());
    while (result > 0);
    EQUALS(result, -ETIMEDOUT);
}

static void call_each(void *arg, unsigned index)
{
    (void)arg;
    (void)index;
    for (size_t i = 0; i < LENGTH(calls); i++) {
        struct spent s = { .wire = calls[i].wire, .side = calls[i].side };
        DOING("%s on %s", calls[i].name, wire_names[s.wire]);
        wire_open(s.wire, s.ends);
        wait_in_vain(&s);
        uint64_t began_ns = rouse_now_ns();
        EQUALS(calls[i].call(&s), calls[i].answer);
        CHECK(rouse_now_ns() - began_ns < LONG_NS / 2);
        wire_close(s.ends);
    }
}

static void calls_that_need_not_wait_return_at_once(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, call_each, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(calls_that_need_not_wait_return_at_once) };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
