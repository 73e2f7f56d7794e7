/* SPDX-License-Identifier: MIT */
/* descriptors.c - calls that create and release descriptors: socket, pipe, listen, close, dup2 and their kin. */
#include "hooks/descriptors.h"

#include "accept/descriptor.h"
#include "accept/epoll_member.h"
#include "accept/order.h"
#include "os/os.h"
#include "process/real.h"

#include <sys/syscall.h>

RPI_EXPORT RSI_NOINLINE int setsockopt(int fd, int level, int name, const void *value,
                                       socklen_t bytes)
{
    rpi_real_find();
    if (level == SOL_SOCKET && name == SO_RCVLOWAT)
        rpi_fd_set_lowat(); /* before the call: another thread may read at once */
    return rpi_real.setsockopt(fd, level, name, value, bytes);
}

RPI_EXPORT RSI_NOINLINE int listen(int fd, int most)
{
    rpi_real_find();
    int result = rpi_real.listen(fd, most);
    rpi_listener_ask_anew(fd);
    return result;
}

static void give_away(int fd)
{
    rpi_order_close(fd);
    rpi_descriptor_made(fd, RPI_FD_UNKNOWN);
}

RPI_EXPORT RSI_NOINLINE int close(int fd)
{
    rpi_real_find();
    if (fd >= 0 && rpi_fd_is_ours((unsigned)fd)) {
        errno = EBADF; /* as it would be without us */
        return -1;
    }
    give_away(fd);
    return rpi_real.close(fd);
}

/*
 * If the number is ours, the program has closed its own descriptor of that number before. Close ours first, so that
 * libc's close fails as it would without us.
 */
void rpi_descriptors_closed(int fd)
{
    if (fd < 0)
        return;
    if (rsi_unlikely(rpi_fd_is_ours((unsigned)fd))) {
        rpi_fd_class_set(fd, RPI_FD_UNKNOWN);
        (void)rsi_syscall1(SYS_close, fd);
    }
    give_away(fd);
}

/*
 * dup2, or dup3 with its flags. The target is forgotten only after the call has succeeded. Forgetting it before would
 * leave a listener out of its set, and another thread could ask for the class of the old file.
 */
static int renew(int from, int to, const int *flags)
{
    sigset_t before;
    bool is_kept = from == to || rpi_self_is_vforked();
    bool was_ours = !is_kept && to >= 0 && rpi_fd_is_ours((unsigned)to);
    if (was_ours)
        rpi_fd_class_set(to, RPI_FD_UNKNOWN);
    bool is_held = !is_kept && rpi_epoll_member_hold(to, &before);
    int result = flags ? rpi_real.dup3(from, to, *flags) : rpi_real.dup2(from, to);
    if (is_held)
        rpi_epoll_member_release(to, result >= 0, &before);
    if (result >= 0 && !is_kept)
        rpi_descriptor_set_class(to, RPI_FD_UNKNOWN);
    else if (was_ours)
        rpi_fd_class_set(to, RPI_FD_OURS);
    return result;
}

RPI_EXPORT RSI_NOINLINE int dup2(int from, int to)
{
    rpi_real_find();
    return renew(from, to, NULL);
}

RPI_EXPORT RSI_NOINLINE int dup3(int from, int to, int flags)
{
    rpi_real_find();
    return renew(from, to, &flags);
}

RPI_EXPORT RSI_NOINLINE int socket(int domain, int type, int protocol)
{
    rpi_real_find();
    int fd = rpi_real.socket(domain, type, protocol);
    rpi_descriptor_made(
        fd, rpi_fd_class_of_socket(domain, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol));
    return fd;
}

static int made_two(int result, const int fds[2], enum rpi_fd_class class)
{
    if (result == 0) {
        rpi_descriptor_made(fds[0], class);
        rpi_descriptor_made(fds[1], class);
    }
    return result;
}

RPI_EXPORT RSI_NOINLINE int socketpair(int domain, int type, int protocol, int fds[2])
{
    rpi_real_find();
    return made_two(
        rpi_real.socketpair(domain, type, protocol, fds), fds,
        rpi_fd_class_of_socket(domain, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol));
}

RPI_EXPORT RSI_NOINLINE int pipe(int fds[2])
{
    rpi_real_find();
    return made_two(rpi_real.pipe(fds), fds, RPI_FD_PIPE);
}

RPI_EXPORT RSI_NOINLINE int pipe2(int fds[2], int flags)
{
    rpi_real_find();
    return made_two(rpi_real.pipe2(fds, flags), fds, RPI_FD_PIPE);
}

static void forget(unsigned first, unsigned last)
{
    for (unsigned fd = first; fd <= last && fd < RPI_FD_CLASSES; fd++)
        rpi_descriptor_made((int)fd, RPI_FD_UNKNOWN);
}

/*
 * Forget the numbers before the call, because other threads may reuse them right after it. So check first that the
 * kernel accepts the flags, by a range that has no descriptor.
 */
RPI_EXPORT RSI_NOINLINE int close_range(unsigned first, unsigned last, int flags)
{
    rpi_real_find();
    bool are_closed = !(flags & CLOSE_RANGE_CLOEXEC); /* with that flag all stay open */
    if (are_closed && first <= last && !rpi_self_is_vforked() && !rpi_recording_is_confined()) {
        if (rpi_real.close_range(UINT32_MAX, UINT32_MAX, flags) != 0)
            return -1;
        forget(first, last);
    }
    return rpi_real.close_range(first, last, flags);
}

RPI_EXPORT RSI_NOINLINE void closefrom(int first)
{
    rpi_real_find();
    forget(first > 0 ? (unsigned)first : 0, UINT32_MAX);
    rpi_real.closefrom(first);
}
