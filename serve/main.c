/* SPDX-License-Identifier: MIT */
/*
 * main.c - rouse-serve: options, the listening socket, signals.
 *
 * main() is a foreign kernel thread. It prepares everything, starts one rouse thread that serves and one that waits
 * for signals, and joins the first.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "serve.h"

#define INSTANCES_MOST 256
#define SECOND_NS ((uint64_t)1000 * 1000 * 1000)

#define PER_ADDRESS_UNSET UINT_MAX /* half of the connections */

struct settings settings = {
    .root = -1,
    .address = "127.0.0.1",
    .port = "8080",
    .kind = ROUSE_KIND_USER,
    .instances = 1,
    .max_connections = 10000,
    .per_address = PER_ADDRESS_UNSET,
    .limits = {
        .idle_ns = 60 * SECOND_NS,
        .header_ns = 20 * SECOND_NS,
        .body_ns = 20 * SECOND_NS,
        .write_ns = 60 * SECOND_NS,
        .grace_ns = 10 * SECOND_NS,
        .rate = 100,
    },
    .drain_ns = 10 * SECOND_NS,
};

struct server pages = {
    .ended = ROUSE_COND_INIT_NAMED("connection ended"),
};
struct server metrics = {
    .answer = metrics_answer,
    .max_connections = METRICS_CONNECTIONS,
    .ended = ROUSE_COND_INIT_NAMED("metrics ended"),
};

static const char help[] =
    "Usage: rouse-serve [options] DIR\n"
    "       rouse-serve [options] --respond TEXT\n"
    "Serve the files beneath DIR, or one constant text, by HTTP/1.1, one thread per connection.\n"
    "\n"
    "  -p, --port N             port; 0 for any free port (8080)\n"
    "  -a, --address ADDRESS    IPv4 or IPv6 address or host name to listen on (127.0.0.1), or\n"
    "                           unix:PATH\n"
    "  -t, --threads KIND       user or kernel (user)\n"
    "  -w, --workers N          kernel threads that run user threads (one per usable CPU)\n"
    "      --instances N        processes, each with its own workers; one that dies is started again (1)\n"
    "  -r, --respond TEXT       answer every request with TEXT\n"
    "      --max-connections N  connections at once; others wait until one ends (10000)\n"
    "      --per-address N      connections at once of one client address; 0: any number (half of\n"
    "                           --max-connections)\n"
    "      --idle-timeout S     seconds that a connection may wait for its next request (60)\n"
    "      --header-timeout S   seconds that the head of a request may take to arrive (20)\n"
    "      --body-timeout S     seconds that the body of a request may take to arrive (20)\n"
    "      --write-timeout S    seconds that a client may take without reading any of an answer (60)\n"
    "      --min-rate N         bytes per second that a client must send or read; 0: any rate (100)\n"
    "      --rate-grace S       seconds before the rate counts, and over which it is measured (10)\n"
    "      --drain-timeout S    seconds to finish current answers after SIGINT or SIGTERM (10)\n"
    "      --access-log FILE    write a line per answer, in the combined format; -: standard output.\n"
    "                           SIGUSR1 opens FILE again\n"
    "      --dot-files          serve files whose names begin with a dot, too\n"
    "      --shared-lock US     before each answer, hold a lock that all connections share for US\n"
    "                           microseconds: a contended lock to find with `rouse report` (0)\n"
    "      --metrics [ADDRESS:]PORT\n"
    "                           serve metrics for Prometheus at /metrics (127.0.0.1)\n"
    "  -h, --help               print this text\n"
    "  -V, --version            print the version\n"
    "\n"
    "The first SIGINT or SIGTERM finishes the current answers and exits with status 0. The second exits at once.\n";

_Noreturn static void __attribute__((format(printf, 2, 3)))
fail(int status, const char *format, ...)
{
    va_list arguments;

    fputs("rouse-serve: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(status);
}

static unsigned number(const char *option, const char *text, unsigned least, unsigned most)
{
    char *end;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > most)
        fail(2, "--%s requires a number from %u to %u, not '%s'", option, least, most, text);
    return (unsigned)value;
}

static enum rouse_kind kind(const char *text)
{
    if (strcmp(text, "user") == 0)
        return ROUSE_KIND_USER;
    if (strcmp(text, "kernel") == 0)
        return ROUSE_KIND_KERNEL;
    fail(2, "--threads requires user or kernel, not '%s'", text);
}

/* A port, or an address, a colon and a port. An IPv6 address must be in brackets. */
static void metrics_at(const char *text)
{
    char *address = strdup(text), *colon = address ? strrchr(address, ':') : NULL;
    size_t bytes;

    if (address == NULL)
        fail(1, "out of memory");
    settings.metrics_port = colon ? text + (colon - address) + 1 : text;
    number("metrics", settings.metrics_port, 0, 65535);
    if (colon == NULL) {
        free(address);
        settings.metrics_address = NULL;
        return;
    }
    *colon = 0;
    bytes = (size_t)(colon - address);
    if (bytes > 2 && address[0] == '[' && address[bytes - 1] == ']') {
        memmove(address, address + 1, bytes - 2);
        address[bytes - 2] = 0;
    } else if (bytes == 0 || strpbrk(address, ":[]")) {
        fail(2, "--metrics requires [ADDRESS:]PORT, with an IPv6 address in brackets, not '%s'",
             text);
    }
    settings.metrics_address = address;
}

static bool parse_limit(int option, const char *text)
{
    struct limits *limits = &settings.limits;

    switch (option) {
    case 'A': settings.per_address = number("per-address", text, 0, 10 * 1000 * 1000); break;
    case 'i': limits->idle_ns = number("idle-timeout", text, 1, 86400) * SECOND_NS; break;
    case 'H': limits->header_ns = number("header-timeout", text, 1, 86400) * SECOND_NS; break;
    case 'B': limits->body_ns = number("body-timeout", text, 1, 86400) * SECOND_NS; break;
    case 'W': limits->write_ns = number("write-timeout", text, 1, 86400) * SECOND_NS; break;
    case 'R': limits->rate = number("min-rate", text, 0, 1000 * 1000 * 1000); break;
    case 'G': limits->grace_ns = number("rate-grace", text, 1, 86400) * SECOND_NS; break;
    default: return false;
    }
    return true;
}

static void parse_option(int option, const char *text)
{
    switch (option) {
    case 'p':
        number("port", text, 0, 65535);
        settings.port = text;
        break;
    case 'a': settings.address = text; break;
    case 't': settings.kind = kind(text); break;
    case 'w': settings.workers = number("workers", text, 1, 1024); break;
    case 'r':
        settings.respond = text;
        settings.respond_bytes = strlen(text);
        break;
    case 'm':
        settings.max_connections = number("max-connections", text, 1, 10 * 1000 * 1000);
        break;
    case 'd': settings.drain_ns = number("drain-timeout", text, 0, 86400) * SECOND_NS; break;
    case 's':
        settings.shared_ns = number("shared-lock", text, 0, 1000 * 1000) * UINT64_C(1000);
        break;
    case 'I': settings.instances = number("instances", text, 1, INSTANCES_MOST); break;
    case 'L': settings.access_log = text; break;
    case 'D': settings.dot_files = true; break;
    case 'M': metrics_at(text); break;
    case 'h': fputs(help, stdout); exit(0);
    case 'V': puts("rouse-serve " ROUSE_VERSION); exit(0);
    default: exit(2); /* getopt_long has printed the reason */
    }
}

static void parse_options(int argc, char **argv)
{
    static const struct option options[] = {
        { "port", required_argument, NULL, 'p' },
        { "address", required_argument, NULL, 'a' },
        { "threads", required_argument, NULL, 't' },
        { "workers", required_argument, NULL, 'w' },
        { "respond", required_argument, NULL, 'r' },
        { "max-connections", required_argument, NULL, 'm' },
        { "per-address", required_argument, NULL, 'A' },
        { "idle-timeout", required_argument, NULL, 'i' },
        { "header-timeout", required_argument, NULL, 'H' },
        { "body-timeout", required_argument, NULL, 'B' },
        { "write-timeout", required_argument, NULL, 'W' },
        { "min-rate", required_argument, NULL, 'R' },
        { "rate-grace", required_argument, NULL, 'G' },
        { "drain-timeout", required_argument, NULL, 'd' },
        { "instances", required_argument, NULL, 'I' },
        { "access-log", required_argument, NULL, 'L' },
        { "dot-files", no_argument, NULL, 'D' },
        { "shared-lock", required_argument, NULL, 's' },
        { "metrics", required_argument, NULL, 'M' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "p:a:t:w:r:hV", options, NULL)) != -1)
        if (!parse_limit(option, optarg))
            parse_option(option, optarg);
    if (argc - optind > 1)
        fail(2, "only one directory can be served: unexpected argument '%s'", argv[optind + 1]);
    settings.directory = argv[optind];
    if (settings.directory == NULL && settings.respond == NULL)
        fail(2, "name a directory to serve, or give --respond TEXT; see rouse-serve --help");
    if (settings.directory && settings.respond)
        fail(2, "give either a directory or --respond, not both");
}

/* After limit_connections, which may lower the number of connections. */
static void set_limits(void)
{
    if (settings.per_address == PER_ADDRESS_UNSET)
        settings.per_address = settings.max_connections / 2 + settings.max_connections % 2;
    if (limits_prepare() < 0)
        fail(1, "cannot read random bytes: %s", strerror(errno));
    pages.limits = metrics.limits = settings.limits;
    limits_at_most(&metrics.limits, METRICS_IDLE_NS);
}

#define BACKLOG 4096

static int listen_at(const struct addrinfo *found)
{
    int on = 1, fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    /* Connections inherit TCP_NODELAY. Answers are sent whole, so delaying them gains nothing. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        (settings.instances > 1 && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) < 0) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
        int error = errno;

        close(fd);
        return -error;
    }
    return fd;
}

static int open_socket(const char *address, const char *port)
{
    struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    const char *path = unix_socket_path(address);
    int fd, error;

    if (path) {
        if ((fd = unix_socket_listen(path, BACKLOG)) < 0)
            fail(1, "cannot listen on '%s': %s", address, strerror(-fd));
        return fd;
    }
    error = getaddrinfo(address, port, &hints, &found);
    if (error)
        fail(1, "cannot listen on '%s': %s", address, gai_strerror(error));
    fd = listen_at(found);
    freeaddrinfo(found);
    if (fd < 0)
        fail(1, "cannot listen on %s, port %s: %s", address, port, strerror(-fd));
    return fd;
}

/* The port of a listening socket, in text. */
static void port_of(int fd, char text[static NI_MAXSERV])
{
    struct sockaddr_storage address = { 0 };
    socklen_t length = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
        getnameinfo((struct sockaddr *)&address, length, NULL, 0, text, NI_MAXSERV,
                    NI_NUMERICSERV) != 0)
        fail(1, "cannot read the address of the listening socket");
}

/*
 * Become one of the instances. Returns its number. fds: a listening socket for each; those of the others are closed. On a
 * socket with a path all listen together.
 */
static unsigned become_instance(int fds[static INSTANCES_MOST], const sigset_t *signals)
{
    static char port[NI_MAXSERV];
    unsigned number;

    for (unsigned i = 1; i < settings.instances; i++) {
        if (unix_socket_path(settings.address)) {
            fds[i] = fds[0];
            continue;
        }
        port_of(fds[0], port);
        fds[i] = open_socket(settings.address, port);
    }
    number = supervise(settings.instances, signals);
    for (unsigned i = 0; i < settings.instances; i++)
        if (fds[i] != fds[number])
            close(fds[i]);
    return number;
}

/* The port for an instance's metrics: they count on from that of the first one. 0: any free one. */
static const char *metrics_port(unsigned instance)
{
    static char text[16];
    unsigned long first = strtoul(settings.metrics_port, NULL, 10), port = first + instance;

    if (port > 65535)
        fail(1, "there is no port %lu for the metrics of instance %u", port, instance);
    snprintf(text, sizeof(text), "%lu", first ? port : 0);
    return text;
}

/* Descriptors of a connection: a second one for the file that it sends. */
static rlim_t each_connection(void)
{
    return settings.respond ? 1 : 2;
}

/* Descriptors of other things than connections. */
static rlim_t reserved_descriptors(void)
{
    return 16 + 4 * (rlim_t)rouse_worker_count() +
           (settings.metrics_port ? METRICS_CONNECTIONS + 1 : 0);
}

/*
 * Allow no more connections than can be served. Returns whether the limit also has room for those that may wait in
 * the queue.
 */
static bool limit_connections(void)
{
    rlim_t each = each_connection(), reserved = reserved_descriptors();
    rlim_t wanted = settings.max_connections * each + reserved, all = wanted + BACKLOG;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return true;
    if (limit.rlim_cur < all) {
        limit.rlim_cur = limit.rlim_max < all ? limit.rlim_max : all;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < wanted)
        settings.max_connections =
            limit.rlim_cur > reserved + each ? (unsigned)((limit.rlim_cur - reserved) / each) : 1;
    return limit.rlim_cur >= all;
}

/*
 * Let the kernel's table of descriptors grow now, while there is one kernel thread. With several, each doubling would
 * stop the thread that accepts for 10 to 30 ms, until no processor reads the old table. Without memory it grows later.
 */
static void grow_descriptor_table(int open_fd)
{
    rlim_t wanted = reserved_descriptors() + settings.max_connections * each_connection();
    struct rlimit limit;
    int highest;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    highest = fcntl(open_fd, F_DUPFD_CLOEXEC,
                    (int)(limit.rlim_cur < wanted ? limit.rlim_cur : wanted) - 1);
    if (highest >= 0)
        close(highest);
}

/* "HOST:PORT" of a listening socket, as in a URL. */
#define PLACE_BYTES (NI_MAXHOST + NI_MAXSERV + 4)
static void place_of(int listen_fd, char place[static PLACE_BYTES])
{
    struct sockaddr_storage address = { 0 };
    socklen_t length = sizeof(address);
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getsockname(listen_fd, (struct sockaddr *)&address, &length) < 0 ||
        getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        fail(1, "cannot read the address of the listening socket");
    snprintf(place, PLACE_BYTES, address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void announce_pages(int listen_fd)
{
    char place[PLACE_BYTES];
    const char *reason, *backend;

    printf("rouse-serve: serving %s at ",
           settings.respond ? "a constant text" : settings.directory);
    if (unix_socket_path(settings.address)) {
        printf("%s (", settings.address);
    } else {
        place_of(listen_fd, place);
        printf("http://%s/ (", place);
    }
    if (settings.instances > 1)
        printf("instances: %u, each with ", settings.instances);
    if (settings.kind == ROUSE_KIND_USER) {
        backend = rouse_io_backend(&reason);
        printf("user threads, workers: %u, %s: %s", rouse_worker_count(), backend, reason);
    } else {
        printf("kernel threads");
    }
    printf(", connections: up to %u)\n", settings.max_connections);
}

static void announce(unsigned instance, int listen_fd, int metrics_fd)
{
    char place[PLACE_BYTES];

    if (instance == 0)
        announce_pages(listen_fd);
    if (metrics_fd >= 0) {
        place_of(metrics_fd, place);
        printf("rouse-serve: metrics for Prometheus at http://%s/metrics\n", place);
    }
    fflush(stdout);
}

struct watch {
    sigset_t signals;
    struct rouse_thread *server, *metrics; /* metrics: NULL without --metrics */
};

/* Among the signals only with a log. */
static bool is_for_log(int number)
{
    if (number != SIGUSR1)
        return false;
    access_log_reopen();
    return true;
}

/*
 * A kernel thread in sigwait. It needs no descriptor, so the server can be stopped even if none is left.
 */
static void *watch_signals(void *arg)
{
    const struct watch *watch = arg;
    int number;

    do
        if (sigwait(&watch->signals, &number) != 0)
            return NULL;
    while (is_for_log(number));
    fputs("rouse-serve: finishing the current answers; a second signal exits at once\n", stderr);
    rouse_thread_cancel(watch->server);
    if (watch->metrics)
        rouse_thread_cancel(watch->metrics);
    do
        if (sigwait(&watch->signals, &number) != 0)
            return NULL;
    while (is_for_log(number));
    _exit(128 + number);
}

static void *serve_metrics(void *arg)
{
    server_run(&metrics, *(int *)arg);
    return NULL;
}

static void *serve(void *arg)
{
    unsigned cut = server_run(&pages, *(int *)arg);

    if (cut)
        fprintf(stderr, "rouse-serve: %u connection%s cut\n", cut, cut == 1 ? "" : "s");
    return NULL;
}

/*
 * Serve until a signal has drained the server. Everything that main itself needs is allocated before the address is
 * printed.
 */
static void run(unsigned instance, int listen_fd, int metrics_fd, const sigset_t *signals)
{
    struct rouse_thread_attr attr = { .kind = settings.kind, .name = "server" };
    static struct watch watch; /* outlives main's frame, as does the thread that reads it */
    int result;

    rouse_thread_set_name(rouse_thread_self(), "main");
    watch.signals = *signals;
    result = settings.access_log ? access_log_start() : 0;
    if (result == 0)
        result = rouse_thread_create(&watch.server, &attr, serve, &listen_fd);
    attr.name = "metrics";
    if (result == 0 && metrics_fd >= 0)
        result = rouse_thread_create(&watch.metrics, &attr, serve_metrics, &metrics_fd);
    if (result == 0) {
        attr.detached = true;
        attr.kind = ROUSE_KIND_KERNEL;
        attr.name = "signals";
        result = rouse_thread_create(NULL, &attr, watch_signals, &watch);
    }
    if (result < 0)
        fail(1, "cannot start a thread: %s", strerror(-result));
    announce(instance, listen_fd, metrics_fd);
    result = rouse_thread_join(watch.server, NULL);
    if (result == 0 && watch.metrics)
        result = rouse_thread_join(watch.metrics, NULL);
    if (result < 0)
        fail(1, "cannot wait for the server: %s", strerror(-result));
    if (settings.instances == 1)
        unix_socket_remove();
    if (settings.access_log)
        access_log_stop();
}

int main(int argc, char **argv)
{
    struct rouse_config config = { 0 };
    sigset_t signals;
    static int fds[INSTANCES_MOST];
    int listen_fd, metrics_fd = -1, result;
    unsigned instance = 0;
    bool has_spare;

    parse_options(argc, argv);
    /* Before the runtime starts its kernel threads, which inherit the signal mask. */
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (settings.access_log)
        sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    config.workers = settings.workers;
    result = rouse_configure(&config);
    if (result < 0)
        fail(1, "cannot set the workers: %s", strerror(-result));
    if (settings.directory && (result = files_init(settings.directory)) < 0)
        fail(1, "cannot serve '%s': %s", settings.directory, strerror(-result));
    if (settings.respond && response_prepare() < 0)
        fail(1, "out of memory");
    if (settings.access_log && (result = access_log_open()) < 0)
        fail(1, "cannot write the access log '%s': %s", settings.access_log, strerror(-result));
    fds[0] = open_socket(settings.address, settings.port);
    if (settings.instances > 1)
        instance = become_instance(fds, &signals);
    listen_fd = fds[instance];
    has_spare = limit_connections();
    grow_descriptor_table(listen_fd);
    pages.answer = settings.respond ? response_constant : response_target;
    pages.max_connections = settings.max_connections;
    set_limits();
    if (settings.metrics_port) {
        metrics_fd = open_socket(settings.metrics_address ? settings.metrics_address : "127.0.0.1",
                                 metrics_port(instance));
        /*
         * With an order, connections are accepted one per call, so those that wait here take no descriptors from
         * the pages.
         */
        if ((result = rouse_listener_order(metrics_fd, ROUSE_ACCEPT_FIFO)) < 0)
            fail(1, "cannot order the connections: %s", strerror(-result));
    }
    /*
     * With an order, each connection is accepted by a call. Without, io_uring accepts some ahead.
     */
    if (!has_spare && (result = rouse_listener_order(listen_fd, ROUSE_ACCEPT_FIFO)) < 0)
        fail(1, "cannot order the connections: %s", strerror(-result));
    run(instance, listen_fd, metrics_fd, &signals);
    return 0;
}
