/* SPDX-License-Identifier: MIT */
/*
 * fd_class.c - remembers what kind of file each descriptor refers to, as far as it decides whether a call may wait.
 *
 * The kernel is asked once per descriptor. Every call that releases a number makes us forget it: close and its variants
 * (hooks/descriptors.c) and the calls in which libc closes one itself (hooks/stdio.c). So the calls that create a
 * number (dup, fcntl, eventfd, a message that carries one) need not be seen. socket, accept and pipe are seen, which
 * saves a question. A number that is released in another way, by a raw system call, keeps its class until socket,
 * accept or pipe creates it anew. The first call that then takes it for a socket fails with ENOTSOCK and is repeated
 * as the program made it. At worst, waits for it are not recorded.
 */
#include "record/fd_class.h"

#include "os/os.h"
#include "process/real.h"
#include "process/self.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

/*
 * Clients are at the other end: the socket was accepted. An epoll set has this bit and perhaps the other one. A
 * child keeps the bits, since a server may fork for each connection.
 */
#define IS_CLIENT 0x80u
#define HAS_OTHERS 0x40u /* an epoll set also has sockets that were not accepted */
#define CLASS 0x3fu

/* An enum rpi_fd_class and these bits. Relaxed: any thread writes, and a reader acts on this one value alone. */
static uint8_t classes[RPI_FD_CLASSES];

/*
 * Whether any socket has had an SO_RCVLOWAT of its own. Until then no socket is asked for it. Relaxed is enough: only
 * the calls of this process and the sockets that it inherited are seen, so calls of other processes are missed
 * anyway.
 */
static bool is_lowat_used;

static bool is_known(int fd)
{
    return fd >= 0 && (unsigned)fd < RPI_FD_CLASSES && !rpi_self_is_vforked();
}

void rpi_fd_class_set(int fd, enum rpi_fd_class class)
{
    if (is_known(fd))
        rsi_store_relaxed(&classes[fd], (uint8_t) class);
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

/* A stream socket of AF_UNIX takes up to one kernel buffer whole. Datagrams are always whole. */
enum rpi_fd_class rpi_fd_class_of_socket(int domain, int type, int protocol)
{
    bool is_ip = domain == AF_INET || domain == AF_INET6;
    if (type == SOCK_DGRAM &&
        (domain == AF_UNIX || (is_ip && (protocol == 0 || protocol == IPPROTO_UDP))))
        return RPI_FD_MESSAGE;
    return domain == AF_UNIX && type == SOCK_STREAM ? RPI_FD_WHOLE : RPI_FD_SOCKET;
}

/* /dev/null, zero, full and urandom; see "memory devices" in the kernel's list of device numbers. */
static bool never_waits(const struct stat *status)
{
    unsigned minor_number = minor(status->st_rdev);
    return S_ISCHR(status->st_mode) && major(status->st_rdev) == 1 &&
           (minor_number == 3 || minor_number == 5 || minor_number == 7 || minor_number == 9);
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
        class = rpi_fd_class_of_socket(option(fd, SO_DOMAIN), option(fd, SO_TYPE),
                                       option(fd, SO_PROTOCOL));
        if (option(fd, SO_RCVLOWAT) > 1)
            rsi_store_relaxed(&is_lowat_used, true);
        errno = error;
    } else if (S_ISFIFO(status.st_mode)) {
        class = RPI_FD_PIPE;
    } else if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode) && !S_ISBLK(status.st_mode) &&
               !never_waits(&status))
        class = RPI_FD_OTHER;
    if (is_known(fd)) {
        unsigned bits = rsi_load_relaxed(&classes[fd]) & ~CLASS;
        bool is_socket = S_ISSOCK(status.st_mode);
        rsi_store_relaxed(&classes[fd], (uint8_t)(class | (is_socket ? bits & IS_CLIENT : bits)));
    }
    return class;
}

void rpi_fd_set_client(int fd)
{
    if (is_known(fd))
        (void)rsi_fetch_or_relaxed(&classes[fd], (uint8_t)IS_CLIENT);
}

void rpi_fd_set_member(int set, int fd, bool is_listener)
{
    if (!is_known(set) || (!is_listener && !rpi_fd_is_socket(fd)))
        return;
    bool is_client = is_listener || rpi_fd_is_for_clients(fd);
    (void)rsi_fetch_or_relaxed(&classes[set], (uint8_t)(is_client ? IS_CLIENT : HAS_OTHERS));
}

bool rpi_fd_is_for_clients(int fd)
{
    return is_known(fd) && (rsi_load_relaxed(&classes[fd]) & ~CLASS) == IS_CLIENT;
}

enum rpi_fd_class rpi_fd_class_of(int fd)
{
    unsigned class = is_known(fd) ? rsi_load_relaxed(&classes[fd]) & CLASS : RPI_FD_UNKNOWN;
    return rsi_likely(class != RPI_FD_UNKNOWN) ? (enum rpi_fd_class) class : ask(fd);
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

void rpi_fd_set_lowat(void)
{
    rsi_store_relaxed(&is_lowat_used, true);
}

/*
 * Close our own descriptors, which the child has inherited. Ask for the others anew, since libc may change them by
 * itself (forkpty, daemon).
 */
void rpi_fd_class_child(void)
{
    for (int fd = 0; fd < (int)RPI_FD_CLASSES; fd++) {
        unsigned class = rsi_load_relaxed(&classes[fd]);
        if (class == RPI_FD_UNKNOWN)
            continue;
        rsi_store_relaxed(&classes[fd], (uint8_t)(class & ~CLASS));
        if (class == RPI_FD_OURS)
            (void)rsi_syscall1(SYS_close, fd); /* directly: libc's close is a cancellation point */
    }
}

bool rpi_fd_is_ours(unsigned fd)
{
    return fd < RPI_FD_CLASSES && rsi_load_relaxed(&classes[fd]) == RPI_FD_OURS;
}

bool rpi_fd_lacks_nowait(int fd, int error)
{
    if (error != EOPNOTSUPP && error != ENOSYS && error != EPERM && error != EINVAL)
        return false;
    rpi_fd_class_set(fd, RPI_FD_OTHER);
    return true;
}
