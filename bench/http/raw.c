/* SPDX-License-Identifier: MIT */
/* raw.c - see raw.h. */
#include "raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const char *raw_program;
char *raw_replies;
size_t raw_reply_bytes;

_Noreturn void raw_die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", raw_program, what, strerror(errno));
    exit(1);
}

void raw_prepare_replies(const char *text)
{
    char date[64];
    const time_t now = time(NULL);
    struct tm tm;
    char *reply;

    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    const int n = asprintf(&reply,
                           "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
                           "Content-Length: %zu\r\nDate: %s\r\n\r\n%s",
                           strlen(text), date, text);
    if (n < 0 || !(raw_replies = malloc((size_t)n * RAW_JOINED)))
        raw_die("memory");
    raw_reply_bytes = (size_t)n;
    for (unsigned i = 0; i < RAW_JOINED; i++)
        memcpy(raw_replies + i * raw_reply_bytes, reply, raw_reply_bytes);
    free(reply);
}

unsigned raw_raise_files(void)
{
    struct rlimit files = { .rlim_cur = 1024 };

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return files.rlim_cur < UINT32_MAX ? (unsigned)files.rlim_cur : UINT32_MAX;
}

#define LOOPS_MOST 64

static bool is_first_process = true;
static unsigned listens_at, others;
static int ready[2] = { -1, -1 }; /* each other process writes a byte once it serves */

/* Port 0: any free one, which is then in *port. is_shared: other sockets of the user may listen there (SO_REUSEPORT). */
static int open_listener(unsigned *port, int flags, bool is_shared)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
    socklen_t length = sizeof address;
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        raw_die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (is_shared)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* accepted sockets inherit it */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0)
        raw_die("listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    *port = ntohs(address.sin_port);
    return fd;
}

int raw_listen(unsigned port, int flags, unsigned loops)
{
    const int own = open_listener(&port, flags, loops > 1);
    const pid_t parent = getpid();

    if (loops < 1 || loops > LOOPS_MOST) {
        errno = EINVAL;
        raw_die("loops");
    }
    if (pipe2(ready, O_CLOEXEC) != 0)
        raw_die("pipe");
    for (unsigned i = 1; i < loops; i++) {
        const int other = open_listener(&port, flags, true);
        const pid_t pid = fork();
        if (pid < 0)
            raw_die("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(0);
            close(own);
            close(ready[0]);
            is_first_process = false;
            return other;
        }
        close(other);
    }
    close(ready[1]);
    listens_at = port;
    others = loops - 1;
    return own;
}

void raw_announce(void)
{
    char byte = 0;

    if (!is_first_process) {
        if (write(ready[1], &byte, 1) != 1)
            raw_die("write");
        close(ready[1]);
        return;
    }
    for (; others > 0; others--)
        if (read(ready[0], &byte, 1) != 1) {
            errno = ECHILD;
            raw_die("another loop");
        }
    close(ready[0]);
    printf("%s: serving at http://127.0.0.1:%u/\n", raw_program, listens_at);
    fflush(stdout);
}

unsigned raw_count_requests(struct raw_tail *tail, char *text, size_t bytes)
{
    const char *const end = text + bytes;
    const char *from = text - tail->kept;
    unsigned count = 0;

    memcpy(text - tail->kept, tail->bytes, tail->kept);
    for (const char *hit; (hit = memmem(from, (size_t)(end - from), "\r\n\r\n", 4)); count++)
        from = hit + 4;
    tail->kept = end - from < RAW_TAIL ? (unsigned)(end - from) : RAW_TAIL;
    memcpy(tail->bytes, end - tail->kept, tail->kept);
    return count;
}
