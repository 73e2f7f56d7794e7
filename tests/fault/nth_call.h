/* SPDX-License-Identifier: MIT */
/*
 * nth_call.h - make the nth system call of a kind fail in a child process, for any n.
 *
 * Seccomp's user notification passes the child's calls of that kind to this process. It counts them
 * from the moment when the child arms the fault, and lets all except the nth through. No library is
 * preloaded, so this also catches calls that do not go through libc.
 */
#ifndef NTH_CALL_H
#define NTH_CALL_H

#include "unit/io/io_test.h"
#include "unit/sync/sync_test.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define NTH_CALL_ARCH AUDIT_ARCH_X86_64
#else
#define NTH_CALL_ARCH AUDIT_ARCH_AARCH64
#endif

struct fault {
    const char *name;
    long number; /* the system call */
    int error;   /* the error that the nth call returns */
    /* Count only calls whose argument number arg equals value. -1: count all calls. */
    int arg;
    uint32_t value;
};

/* Shared with the child. */
struct nth_call {
    uint32_t is_armed;
};
static MAYBE_UNUSED struct nth_call *nth_call;

/* In the child: start or stop counting. */
static MAYBE_UNUSED void nth_call_arm(bool on)
{
    rsi_store_seq_cst(&nth_call->is_armed, on);
}

static MAYBE_UNUSED int filter_install(const struct fault *fault)
{
    const unsigned arg = (unsigned)(fault->arg < 0 ? 0 : fault->arg);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NTH_CALL_ARCH, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)fault->number, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 (uint32_t)(offsetof(struct seccomp_data, args) + arg * sizeof(uint64_t))),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, fault->value, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    if (fault->arg < 0)
        code[5].jf = 1;
    struct sock_fprog program = { LENGTH(code), code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &program);
}

union fd_message {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

static MAYBE_UNUSED void listener_send(int to, int listener)
{
    char byte = listener >= 0 ? 'y' : 'n';
    union fd_message control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
    struct iovec iov = { &byte, 1 };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (listener >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        memcpy(CMSG_DATA(&control.header), &listener, sizeof listener);
    }
    if (sendmsg(to, &message, 0) != 1)
        _exit(100);
}

/* Returns the listener, or -1 if the child could not install its filter. */
static MAYBE_UNUSED int listener_receive(int from)
{
    char byte = 0;
    union fd_message control = { .space = { 0 } };
    struct iovec iov = { &byte, 1 };
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    int listener = -1;
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && byte == 'y')
        memcpy(&listener, CMSG_DATA(&control.header), sizeof listener);
    return listener;
}

/* Answer the child's calls until it has ended. Returns false if it hangs. */
static MAYBE_UNUSED bool calls_answer(int listener, const struct fault *fault, unsigned nth,
                                      unsigned *seen)
{
    struct pollfd pollfd = { .fd = listener, .events = POLLIN };
    for (;;) {
        struct seccomp_notif call = { .id = 0 };
        if (poll(&pollfd, 1, PATIENCE_S * 1000) <= 0)
            return false;
        if ((pollfd.revents & POLLIN) == 0)
            return true;
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
            continue;
        struct seccomp_notif_resp answer = { .id = call.id,
                                             .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
        if (rsi_load_seq_cst(&nth_call->is_armed) && ++*seen == nth) {
            answer.flags = 0;
            answer.error = -fault->error;
        }
        (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

/*
 * Run fn in a child in which the nth call of the fault's kind fails (nth 0: none). *seen is set to
 * the number of such calls. Returns the child's status as waitpid does, or -1 if calls cannot be
 * intercepted here.
 */
static MAYBE_UNUSED int nth_call_run(const struct fault *fault, unsigned nth,
                                     void (*fn)(const struct fault *), unsigned *seen)
{
    int ends[2], status;
    *seen = 0;
    if (!nth_call)
        nth_call =
            mmap(NULL, sizeof *nth_call, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(nth_call != MAP_FAILED);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    nth_call->is_armed = 0;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int listener = filter_install(fault);
        listener_send(ends[1], listener);
        close(listener);
        close(ends[0]);
        close(ends[1]);
        fn(fault);
        _exit(0);
    }
    close(ends[1]);
    int listener = listener_receive(ends[0]);
    close(ends[0]);
    bool ended = listener < 0 || calls_answer(listener, fault, nth, seen);
    if (!ended) {
        kill(pid, SIGQUIT);
        sleep(1); /* let the child print its list of threads; the test has failed already */
        kill(pid, SIGKILL);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (listener >= 0)
        close(listener);
    return listener < 0 ? -1 : status;
}

/*
 * Apply each of the count faults at each n that the child reaches. If there are very many, skip some.
 */
static MAYBE_UNUSED void nth_call_each(const struct fault *faults, size_t count,
                                       void (*child)(const struct fault *))
{
    for (size_t i = 0; i < count; i++) {
        unsigned seen = 1, nth = 1;
        for (; nth <= seen; nth += 1 + nth * SCALE / 40) {
            DOING("%s, call %u", faults[i].name, nth);
            int status = nth_call_run(&faults[i], nth, child, &seen);
            if (status != 0)
                fprintf(stderr, "%s, call %u of %u: status %#x\n", faults[i].name, nth, seen,
                        (unsigned)status);
            EQUALS(status, 0);
        }
        printf("%s: %u\n", faults[i].name, nth - 1);
    }
}

static MAYBE_UNUSED void nth_call_none(const struct fault *fault)
{
    (void)fault;
}

/* Whether calls cannot be intercepted here. Prints the reason. */
static MAYBE_UNUSED bool nth_call_is_refused(const struct fault *fault)
{
    unsigned seen;
    if (nth_call_run(fault, 0, nth_call_none, &seen) != -1)
        return false;
    puts("not run: this process may not have its children's calls referred to it (seccomp)");
    return true;
}

#endif
