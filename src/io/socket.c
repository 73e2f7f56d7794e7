/* SPDX-License-Identifier: MIT */
/*
 * socket.c - accept, connect, shutdown, close.
 *
 * accept and connect have no MSG_DONTWAIT, so their socket must be O_NONBLOCK. A listener is made so at its first
 * accept and stays so. An accepted socket is created so, which saves sendfile a call. A socket given to sendfile is
 * made so and stays so. A connecting socket is O_NONBLOCK until it is connected. Other rouse calls do not depend on
 * the flag: the thread waits either way.
 */
#include "io/accept/listener.h"
#include "io/accept/order.h"
#include "io/accept/gates.h"
#include "io/uring/multishot.h"

#include <rouse/io.h>

#include <errno.h>
#include <fcntl.h>

#ifdef RSI_TSAN
/* ThreadSanitizer tracks descriptors through libc's calls. This function of its run-time announces a direct close. */
void __sanitizer_syscall_pre_impl_close(long fd);
#else
#define __sanitizer_syscall_pre_impl_close(fd) ((void)(fd))
#endif

static long run_accept(struct rsi_io_op *op)
{
    bool is_ordered = (rsi_load_relaxed(&op->ref.entry->flags) & RSI_FD_IS_ORDERED) != 0;
    if (rsi_likely(!is_ordered) || !rsi_is_user(rsi_self()))
        return rsi_backend_run(op);
    long result = rsi_order_accept(op);
    rsi_account_call(ROUSE_WAIT_ACCEPT, result);
    return result;
}

static int do_accept(int fd, struct sockaddr *address, socklen_t *length, uint64_t deadline_ns,
                     const void *site)
{
    struct rsi_io_op op = {
        .fd = fd,
        .side = RSI_FD_READ,
        .kind = ROUSE_WAIT_ACCEPT,
        .number = SYS_accept4,
        .arg = { fd, (long)address, (long)length, SOCK_CLOEXEC | SOCK_NONBLOCK },
        .site = site,
        .deadline_ns = deadline_ns,
    };
    int type = rsi_fdtable_find_socket(fd, &op.ref, site);
    if (rsi_unlikely(type < 0))
        return type;
    int result = rsi_fdtable_nonblock(fd, &op.ref);
    if (rsi_unlikely(result < 0))
        return result;
    uint8_t flags = rsi_load_relaxed(&op.ref.entry->flags) & RSI_FD_IS_UNIX;
    flags |= RSI_FD_IS_NONBLOCK;
    do {
        result = (int)run_accept(&op);
    } while (rsi_listener_is_dead(result) || result == -ERESTART);
    /* Without memory for its entry the connection is kept anyway. Its first use reports the error. */
    if (result >= 0)
        (void)rsi_fdtable_fresh(result, (uint8_t)type, flags);
    return result;
}

RSI_NOINLINE int rouse_accept(int fd, struct sockaddr *address, socklen_t *length)
{
    return do_accept(fd, address, length, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE int rouse_accept_until(int fd, struct sockaddr *address, socklen_t *length,
                                    uint64_t deadline_ns)
{
    return do_accept(fd, address, length, deadline_ns, RSI_CALLER());
}

static int do_connect(int fd, const struct sockaddr *address, socklen_t length,
                      uint64_t deadline_ns, const void *site)
{
    struct rsi_io_op op = {
        .fd = fd,
        .side = RSI_FD_WRITE,
        .kind = ROUSE_WAIT_CONNECT,
        .number = SYS_connect,
        .arg = { fd, (long)address, (long)length },
        .site = site,
        .deadline_ns = deadline_ns,
    };
    rsi_fdtable_refresh(
        fd); /* forget an earlier descriptor of this number whose close was not seen */
    int type = rsi_fdtable_find_socket(fd, &op.ref, site);
    if (type < 0)
        return type;
    /* When a full AF_UNIX backlog gets room, no event announces it. */
    if ((rsi_load_relaxed(&op.ref.entry->flags) & RSI_FD_IS_UNIX) != 0)
        op.rules = RSI_IO_SLICED | RSI_IO_KEEPS;
    long flags = rsi_syscall3(SYS_fcntl, fd, F_GETFL, 0);
    if (flags < 0)
        return (int)flags;
    bool is_blocking = (flags & O_NONBLOCK) == 0;
    if (is_blocking)
        rsi_syscall3(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
    long result = rsi_backend_run(&op);
    if (is_blocking && result != -EBADF)
        rsi_syscall3(SYS_fcntl, fd, F_SETFL, flags);
    return (int)result;
}

RSI_NOINLINE int rouse_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    return do_connect(fd, address, length, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE int rouse_connect_until(int fd, const struct sockaddr *address, socklen_t length,
                                     uint64_t deadline_ns)
{
    return do_connect(fd, address, length, deadline_ns, RSI_CALLER());
}

int rouse_shutdown(int fd, int how)
{
    return (int)rsi_syscall2(SYS_shutdown, fd, how);
}

/* How long a release waits for the worker whose ring receives. */
#define RELEASE_NS 100000000u

RSI_NOINLINE ssize_t rouse_release(int fd, void *buffer, size_t bytes)
{
    struct rsi_io_op op = {
        .fd = fd,
        .side = RSI_FD_READ,
        .kind = ROUSE_WAIT_READ,
        .number = SYS_recvfrom,
        .arg = { fd, (long)buffer, (long)bytes },
        .site = RSI_CALLER(),
        .deadline_ns = rsi_now_ns() + RELEASE_NS,
    };
    int type = rsi_fdtable_find(fd, &op.ref);
    return type < 0 ? type : rsi_multishot_release(&op);
}

RSI_NOINLINE int rouse_close(int fd)
{
    const void *site = RSI_CALLER();
    struct rsi_fd_ref ref;
    struct rsi_multishot *receive;
    struct rsi_gates *gates = rsi_listener_leave(fd);
    int marked = rsi_fdtable_close_begin(fd, &ref, &receive, site);
    if (gates != NULL)
        rsi_gates_drop(gates);
    if (marked == -EBADF)
        return marked;
    __sanitizer_syscall_pre_impl_close(fd);
    rsi_test_delay();
    long result = rsi_syscall1(SYS_close, fd);
    if (marked == 0)
        rsi_fdtable_close_end(&ref);
    rsi_multishot_stop(receive, site);
    /* Linux releases the number even then. */
    return result == -EINTR ? 0 : (int)result;
}
