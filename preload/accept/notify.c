/* SPDX-License-Identifier: MIT */
/*
 * notify.c - reports its turn to accept to a thread that polls. It waits for other descriptors too, and so cannot
 * sleep in a futex.
 *
 * The thread has a socket without a peer, under a name that the kernel chose, and its turn is a message to that name.
 * The message has no content. It only makes the thread check the turn, so a message from elsewhere does no harm, and
 * the periodic checks of order.c make up for a lost one.
 */
#include "accept/notify.h"

#include "accept/descriptor.h"
#include "os/os.h"
#include "process/real.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define NAME_BYTES 5u /* of the name that the kernel chooses */
#define FDS_FROM 900  /* the program's descriptors keep their usual numbers */
_Static_assert(NAME_BYTES <= RPI_NOTIFY_NAME_BYTES, "a place has room for it");

/* The program may have closed the socket by its number, which may refer to another file by now. */
int rpi_notify_fd(const struct rpi_thread *self)
{
    return self->turn_fd && rpi_fd_class_of(self->turn_fd) == RPI_FD_OURS ? self->turn_fd : -1;
}

/* Directly, since libc's close is a cancellation point and ours must not be one. */
static void shut(int fd)
{
    (void)rsi_syscall1(SYS_close, fd);
}

/* A socket with a name that the kernel chooses, with a number above those that the program uses. */
static bool make(struct rpi_thread *self)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (rpi_notify_fd(self) >= 0)
        return true;
    int low = rpi_real.socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, FDS_FROM);
    if (low >= 0)
        shut(low);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address.sun_family) != 0) {
        shut(fd);
        fd = -1;
    }
    if (fd < 0)
        return false;
    self->turn_fd = fd;
    rpi_descriptor_made(fd, RPI_FD_OURS);
    return true;
}

bool rpi_notify_open(struct rpi_thread *self, char name[RPI_NOTIFY_NAME_BYTES])
{
    struct sockaddr_un address;
    socklen_t bytes = sizeof address;
    if (!make(self) || getsockname(self->turn_fd, (struct sockaddr *)&address, &bytes) != 0 ||
        bytes != offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES)
        return false;
    memcpy(name, address.sun_path + 1, NAME_BYTES);
    return true;
}

void rpi_notify_send(struct rpi_thread *self, const char name[RPI_NOTIFY_NAME_BYTES])
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path + 1, name, NAME_BYTES);
    if (make(self)) /* the periodic checks make up for a failure */
        (void)rsi_syscall6(SYS_sendto, self->turn_fd, 0, 0, MSG_DONTWAIT | MSG_NOSIGNAL,
                           RSI_SYSCALL_ARG(&address),
                           offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES);
}

void rpi_notify_drain(const struct rpi_thread *self)
{
    char byte;
    int fd = rpi_notify_fd(self);
    while (fd >= 0 &&
           rsi_syscall6(SYS_recvfrom, fd, RSI_SYSCALL_ARG(&byte), 1, MSG_DONTWAIT, 0, 0) >= 0) {
    }
}

void rpi_notify_close(struct rpi_thread *self)
{
    int fd = rpi_notify_fd(self);
    if (fd < 0)
        return;
    rpi_descriptor_made(fd, RPI_FD_UNKNOWN);
    shut(fd);
}
