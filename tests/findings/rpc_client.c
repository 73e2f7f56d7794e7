/* SPDX-License-Identifier: MIT */
/*
 * rpc_client.c - threads that ask a server in another process. Fault: they share one connection, and hold its lock
 * from the request to the reply.
 *
 * Repair: one connection per thread.
 */
#include "findings.h"

#include <sys/socket.h>
#include <sys/wait.h>

enum { THREADS = 4, REPLY_US = 300, REPLY_BYTES = 10000 };

static pthread_mutex_t connection_lock = PTHREAD_MUTEX_INITIALIZER;
static int connections[THREADS], accepted[THREADS];

static uint64_t exchange(int connection, uint64_t request)
{
    uint64_t reply;
    check(send(connection, &request, sizeof request, 0) == WHOLE(request));
    check(recv(connection, &reply, sizeof reply, 0) == WHOLE(reply));
    return reply;
}

static uint64_t query(unsigned number, uint64_t request)
{
    if (is_fixed)
        return exchange(connections[number], request);
    pthread_mutex_lock(&connection_lock);
    uint64_t reply = exchange(connections[0], request);
    pthread_mutex_unlock(&connection_lock);
    return reply;
}

static void *call(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (uint64_t request = self->seed; !is_over(); ops++)
        request = digest(query(self->number, request), REPLY_BYTES);
    self->ops = ops;
    return NULL;
}

/* The other process: one thread per connection. */
static void *answer(void *arg)
{
    const struct worker *self = arg;
    int connection = accepted[self->number], service = service_open();
    uint64_t request;
    while (recv(connection, &request, sizeof request, 0) == WHOLE(request)) {
        service_ask(service, REPLY_US);
        request++;
        check(send(connection, &request, sizeof request, 0) == WHOLE(request));
    }
    close(service);
    close(connection);
    return NULL;
}

int main(int argc, char **argv)
{
    for (unsigned i = 0; i < THREADS; i++) {
        int ends[2];
        check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        connections[i] = ends[0];
        accepted[i] = ends[1];
    }
    pid_t server = fork();
    check(server >= 0);
    const int *others = server == 0 ? connections : accepted;
    for (unsigned i = 0; i < THREADS; i++)
        close(others[i]);
    if (server == 0) {
        run_threads(THREADS, answer);
        return 0;
    }
    begin(argc, argv);
    unsigned long ops = run_threads(THREADS, call);
    finish(ops);
    for (unsigned i = 0; i < THREADS; i++)
        close(connections[i]);
    int status;
    check(waitpid(server, &status, 0) == server && status == 0);
    return 0;
}
