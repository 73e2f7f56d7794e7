/* SPDX-License-Identifier: MIT */
/*
 * descriptors.c - what the program's descriptors are, as far as it matters whether a call on them may wait.
 *
 * Asked of the kernel once for each, and forgotten by all calls that give a number away: close and its kin here, those in
 * which libc closes one in stream.c. So what makes a number (dup, fcntl, eventfd, a message that brings one) need not be
 * seen; socket, accept and pipe are, which spares a question. One that goes by another way (a system call by its number)
 * keeps the class of what it was until one of those three makes it again: that it is no socket any more is seen by the
 * first call that takes it for one, which is then made as it was asked for; at worst waits for it are not seen.
 */
#include "accept/order.h"

#include "os/os.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS 65536u /* those above are asked for each time */

static uint8_t classes[FDS]; /* enum rpi_fd_class; relaxed: any thread */

/*
 * Whether some socket has had an SO_RCVLOWAT of its own: until then none is asked for it. Relaxed: only this process's
 * calls and the sockets that it was given are looked at, so of another's call it does not know anyway.
 */
static bool is_lowat_used;

static bool is_known(int fd)
{
    return fd >= 0 && (unsigned)fd < FDS && !rpi_self_is_vforked();
}

static void put(int fd, enum rpi_fd_class class)
{
    if (is_known(fd))
        rsi_store_relaxed(&classes[fd], (uint8_t) class);
}

static void put_class(int fd, enum rpi_fd_class class)
{
    put(fd, class);
    if (class == RPI_FD_UNKNOWN)
        rpi_listener_ask_anew(fd);
    else
        rpi_listener_is_none(fd);
}

/* Its number is given away, or made anew. */
static void put_new(int fd, enum rpi_fd_class class)
{
    if (fd < 0 || rpi_self_is_vforked())
        return;
    put_class(fd, class);
    rpi_epoll_member_forget(fd);
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

/* What is little is one buffer of the kernel's to a socket of AF_UNIX; datagrams are always whole. */
static enum rpi_fd_class class_of_socket(int domain, int type, int protocol)
{
    bool is_ip = domain == AF_INET || domain == AF_INET6;
    if (type == SOCK_DGRAM &&
        (domain == AF_UNIX || (is_ip && (protocol == 0 || protocol == IPPROTO_UDP))))
        return RPI_FD_MESSAGE;
    return domain == AF_UNIX && type == SOCK_STREAM ? RPI_FD_WHOLE : RPI_FD_SOCKET;
}

static RSI_COLD enum rpi_fd_class ask(int fd)
{
    struct stat status;
    int error = errno;
    enum rpi_fd_class class = RPI_FD_FILE;
    if (fstat(fd, &status) != 0) {
        errno = error;
        return class;
    }
    if (S_ISSOCK(status.st_mode)) {
        class =
            class_of_socket(option(fd, SO_DOMAIN), option(fd, SO_TYPE), option(fd, SO_PROTOCOL));
        if (option(fd, SO_RCVLOWAT) > 1)
            rsi_store_relaxed(&is_lowat_used, true);
        errno = error;
    } else if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode) && !S_ISBLK(status.st_mode))
        class = RPI_FD_OTHER;
    put(fd, class);
    return class;
}

enum rpi_fd_class rpi_fd_class_of(int fd)
{
    unsigned class = is_known(fd) ? rsi_load_relaxed(&classes[fd]) : RPI_FD_UNKNOWN;
    return rsi_likely(class != RPI_FD_UNKNOWN) ? (enum rpi_fd_class) class : ask(fd);
}

void rpi_descriptor_made(int fd, enum rpi_fd_class class)
{
    put_new(fd, class);
}

bool rpi_fd_is_nonblock(int fd)
{
    int error = errno, flags = fcntl(fd, F_GETFL);
    errno = error;
    return flags >= 0 && flags & O_NONBLOCK;
}

bool rpi_fd_is_ready(int fd, short events)
{
    struct pollfd entry = { fd, events, 0 };
    int error = errno, count = rpi_real.poll(&entry, 1, 0);
    errno = error;
    return count != 0;
}

bool rpi_fd_wants_more(int fd)
{
    if (rsi_likely(!rsi_load_relaxed(&is_lowat_used)))
        return false;
    int error = errno;
    bool wants = option(fd, SO_RCVLOWAT) > 1;
    errno = error;
    return wants;
}

RPI_EXPORT RSI_NOINLINE int setsockopt(int fd, int level, int name, const void *value,
                                       socklen_t bytes)
{
    rpi_real_find();
    if (level == SOL_SOCKET && name == SO_RCVLOWAT)
        rsi_store_relaxed(&is_lowat_used, true); /* first: another thread may read at once */
    return rpi_real.setsockopt(fd, level, name, value, bytes);
}

/* Ours are the parent's; the others are asked for anew, since libc may change them by itself (forkpty, daemon). */
void rpi_fd_class_child(void)
{
    for (int fd = 0; fd < (int)FDS; fd++) {
        unsigned class = rsi_load_relaxed(&classes[fd]);
        if (class == RPI_FD_UNKNOWN)
            continue;
        put(fd, RPI_FD_UNKNOWN);
        if (class == RPI_FD_OURS)
            (void)rsi_syscall1(SYS_close, fd); /* no end of a thread that is cancelled */
    }
}

static bool is_ours(unsigned fd)
{
    return fd < FDS && rsi_load_relaxed(&classes[fd]) == RPI_FD_OURS;
}

static void give_away(int fd)
{
    rpi_order_close(fd);
    put_new(fd, RPI_FD_UNKNOWN);
}

RPI_EXPORT RSI_NOINLINE int close(int fd)
{
    rpi_real_find();
    if (fd >= 0 && is_ours((unsigned)fd)) {
        errno = EBADF; /* as it would be without us */
        return -1;
    }
    give_away(fd);
    return rpi_real.close(fd);
}

/* One of ours goes first: it has the number of one that the program has closed before, and libc's close finds none. */
void rpi_descriptor_closed(int fd)
{
    if (fd < 0)
        return;
    if (rsi_unlikely(is_ours((unsigned)fd))) {
        put(fd, RPI_FD_UNKNOWN);
        (void)rsi_syscall1(SYS_close, fd);
    }
    give_away(fd);
}

/*
 * dup2, or dup3 with its flags. What is known of to goes when another is there, and stays if the call fails: to forget
 * it first would leave a listener out of its set, and let another thread ask what the number still is.
 */
static int renew(int from, int to, const int *flags)
{
    sigset_t before;
    bool is_kept = from == to || rpi_self_is_vforked();
    bool was_ours = !is_kept && to >= 0 && is_ours((unsigned)to);
    if (was_ours)
        put(to, RPI_FD_UNKNOWN);
    bool is_held = !is_kept && rpi_epoll_member_hold(to, &before);
    int result = flags ? rpi_real.dup3(from, to, *flags) : rpi_real.dup2(from, to);
    if (is_held)
        rpi_epoll_member_release(to, result >= 0, &before);
    if (result >= 0 && !is_kept)
        put_class(to, RPI_FD_UNKNOWN);
    else if (was_ours)
        put(to, RPI_FD_OURS);
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
    put_new(fd, class_of_socket(domain, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol));
    return fd;
}

static int made_two(int result, const int fds[2], enum rpi_fd_class class)
{
    if (result == 0) {
        put_new(fds[0], class);
        put_new(fds[1], class);
    }
    return result;
}

RPI_EXPORT RSI_NOINLINE int socketpair(int domain, int type, int protocol, int fds[2])
{
    rpi_real_find();
    return made_two(rpi_real.socketpair(domain, type, protocol, fds), fds,
                    class_of_socket(domain, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol));
}

RPI_EXPORT RSI_NOINLINE int pipe(int fds[2])
{
    rpi_real_find();
    return made_two(rpi_real.pipe(fds), fds, RPI_FD_OTHER);
}

RPI_EXPORT RSI_NOINLINE int pipe2(int fds[2], int flags)
{
    rpi_real_find();
    return made_two(rpi_real.pipe2(fds, flags), fds, RPI_FD_OTHER);
}

static void forget(unsigned first, unsigned last)
{
    for (unsigned fd = first; fd <= last && fd < FDS; fd++)
        put_new((int)fd, RPI_FD_UNKNOWN);
}

/* What is known goes before the call, after which the numbers may be others' at once; so it is asked of none first. */
RPI_EXPORT RSI_NOINLINE int close_range(unsigned first, unsigned last, int flags)
{
    rpi_real_find();
    bool are_closed = !(flags & CLOSE_RANGE_CLOEXEC); /* with it all stay open */
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
