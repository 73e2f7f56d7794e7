/* SPDX-License-Identifier: MIT */
/*
 * client.c - a light HTTP load generator: one kernel thread, fixed requests, replies counted by their bytes.
 *
 *   bench-http-client --port N [--connections C] [--depth D] [--seconds S] [--server-pid PID]
 *
 * Each connection sends D requests in one write and waits for D replies. The client assumes that
 * all replies have the length of the first and parses nothing, so it costs less than the server it measures. The
 * server's CPU time is read when the measured time begins and ends, so that it belongs to exactly the
 * requests counted.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 256
#define DEPTH_MAX 64
#define WARM_UP_NS 200000000u
#define SUB_BUCKETS 32 /* linear steps within a power of two: 3 % */
#define BUCKETS (64 * SUB_BUCKETS)
#define REQUEST "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define REQUEST_BYTES (sizeof REQUEST - 1)

struct connection {
    int fd;
    size_t awaited; /* bytes of replies not yet seen */
    uint64_t sent_ns;
};

struct load {
    unsigned port, connections, depth;
    double seconds;
    int server_pid;
    int epoll;
    size_t reply_bytes;
    struct connection *connection;
    char requests[DEPTH_MAX * REQUEST_BYTES];
    uint64_t replies, errors;
    uint64_t warm_up_replies;
    uint64_t latency[BUCKETS];
};

struct server_time {
    uint64_t cpu_ns, user_ticks, system_ticks;
};

_Noreturn static void die(const char *what)
{
    fprintf(stderr, "bench-http-client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static unsigned bucket_of(uint64_t ns)
{
    if (ns < SUB_BUCKETS)
        return (unsigned)ns;
    const unsigned power = 63 - (unsigned)__builtin_clzll(ns);
    return (power - 4) * SUB_BUCKETS + (unsigned)(ns >> (power - 5)) - SUB_BUCKETS;
}

static uint64_t bucket_ns(unsigned bucket)
{
    if (bucket < SUB_BUCKETS)
        return bucket;
    const unsigned power = bucket / SUB_BUCKETS + 4;
    return (uint64_t)(SUB_BUCKETS + bucket % SUB_BUCKETS) << (power - 5);
}

/* The CPU time in ns of all current threads of the server. */
static uint64_t server_cpu_ns(int pid)
{
    char path[64];
    uint64_t sum = 0;
    struct dirent *entry;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    while (tasks && (entry = readdir(tasks))) {
        char file[384];
        uint64_t ns = 0;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s/schedstat", path, entry->d_name);
        FILE *f = fopen(file, "re");
        if (f && fscanf(f, "%" SCNu64, &ns) == 1)
            sum += ns;
        if (f)
            fclose(f);
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

static struct server_time server_time(int pid)
{
    struct server_time t = { 0 };
    char path[64], line[1024] = "";

    if (pid <= 0)
        return t;
    t.cpu_ns = server_cpu_ns(pid);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(line, sizeof line, f)) {
        /* The name, in parentheses, may contain anything, so count the fields after it. */
        const char *after = strrchr(line, ')');
        if (after)
            sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                   &t.user_ticks, &t.system_ticks);
    }
    if (f)
        fclose(f);
    return t;
}

static int connect_once(const struct load *load)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)load->port) };
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Send one request to learn the length of an answer. */
static size_t measure_reply(const struct load *load)
{
    char buffer[16384];
    size_t have = 0, wanted = 0;
    int fd = connect_once(load);

    if (send(fd, REQUEST, REQUEST_BYTES, MSG_NOSIGNAL) != (ssize_t)REQUEST_BYTES)
        die("send");
    while (wanted == 0 || have < wanted) {
        const ssize_t n = recv(fd, buffer + have, sizeof buffer - 1 - have, 0);
        if (n <= 0)
            die("no answer");
        have += (size_t)n;
        buffer[have] = 0;
        const char *blank = strstr(buffer, "\r\n\r\n");
        const char *length = strcasestr(buffer, "\r\nContent-Length:");
        if (blank && (!length || length > blank)) {
            errno = EPROTO;
            die("the answer has no Content-Length");
        }
        if (blank)
            wanted = (size_t)(blank + 4 - buffer) + strtoul(length + 17, NULL, 10);
    }
    close(fd);
    return wanted;
}

static void ask(const struct load *load, struct connection *c)
{
    const size_t bytes = load->depth * REQUEST_BYTES;
    c->sent_ns = now_ns();
    c->awaited = load->depth * load->reply_bytes;
    if (send(c->fd, load->requests, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        c->awaited = SIZE_MAX; /* the read that follows sees the broken connection */
}

static void open_connection(struct load *load, struct connection *c)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
    c->fd = connect_once(load);
    if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0)
        die("epoll_ctl");
    ask(load, c);
}

static void receive(struct load *load, struct connection *c)
{
    static char buffer[262144];
    const ssize_t n = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);

    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0 || (size_t)n > c->awaited) {
        load->errors++;
        close(c->fd);
        open_connection(load, c);
        return;
    }
    c->awaited -= (size_t)n;
    if (c->awaited == 0) {
        load->latency[bucket_of(now_ns() - c->sent_ns)] += load->depth;
        load->replies += load->depth;
        ask(load, c);
    }
}

static void run_until(struct load *load, uint64_t end_ns)
{
    struct epoll_event events[EVENTS];
    while (now_ns() < end_ns) {
        const int n = epoll_wait(load->epoll, events, EVENTS, 100);
        for (int i = 0; i < n; i++)
            receive(load, events[i].data.ptr);
    }
}

static double quantile_us(const struct load *load, double q)
{
    uint64_t rest = (uint64_t)((double)load->replies * q);
    for (unsigned i = 0; i < BUCKETS; i++) {
        if (load->latency[i] > rest)
            return (double)bucket_ns(i) / 1e3;
        rest -= load->latency[i];
    }
    return 0;
}

static double own_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void measure(struct load *load)
{
    run_until(load, now_ns() + WARM_UP_NS);
    load->warm_up_replies = load->replies;
    load->replies = load->errors = 0;
    memset(load->latency, 0, sizeof load->latency);
    const struct server_time before = server_time(load->server_pid);
    const double own_before_s = own_cpu_s();
    const uint64_t begin_ns = now_ns();
    run_until(load, begin_ns + (uint64_t)(load->seconds * 1e9));
    const uint64_t wall_ns = now_ns() - begin_ns;
    const double own_s = own_cpu_s() - own_before_s;
    const struct server_time after = server_time(load->server_pid);
    const double tick_us = 1e6 / (double)sysconf(_SC_CLK_TCK);

    printf("{\"connections\": %u, \"depth\": %u, \"seconds\": %.3f, \"requests\": %" PRIu64
           ", \"warm_up_requests\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"reply_bytes\": %zu"
           ", \"requests_per_s\": %.1f",
           load->connections, load->depth, (double)wall_ns / 1e9, load->replies,
           load->warm_up_replies, load->errors, load->reply_bytes,
           (double)load->replies * 1e9 / (double)wall_ns);
    printf(", \"latency_p50_us\": %.2f, \"latency_p99_us\": %.2f, \"latency_max_us\": %.2f",
           quantile_us(load, 0.5), quantile_us(load, 0.99), quantile_us(load, 0.999999));
    printf(", \"server_cpu_us\": %.1f, \"server_user_us\": %.0f, \"server_system_us\": %.0f",
           (double)(after.cpu_ns - before.cpu_ns) / 1e3,
           (double)(after.user_ticks - before.user_ticks) * tick_us,
           (double)(after.system_ticks - before.system_ticks) * tick_us);
    printf(", \"client_cpu_s\": %.3f}\n", own_s);
}

_Noreturn static void usage_error(void)
{
    fprintf(stderr,
            "usage: bench-http-client --port N [--connections 1..65000] [--depth 1..%d] "
            "[--seconds S] [--server-pid PID]\n",
            DEPTH_MAX);
    exit(2);
}

static void parse(struct load *load, int argc, char **argv)
{
    static const struct option options[] = {
        { "port", required_argument, NULL, 'p' },
        { "connections", required_argument, NULL, 'c' },
        { "depth", required_argument, NULL, 'd' },
        { "seconds", required_argument, NULL, 's' },
        { "server-pid", required_argument, NULL, 'i' },
        { NULL, 0, NULL, 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        const double value = optarg ? strtod(optarg, NULL) : 0;
        if (option == '?' || value <= 0)
            usage_error();
        if (option == 'p')
            load->port = (unsigned)value;
        else if (option == 'c')
            load->connections = (unsigned)value;
        else if (option == 'd')
            load->depth = (unsigned)value;
        else if (option == 's')
            load->seconds = value;
        else
            load->server_pid = (int)value;
    }
    if (optind != argc || load->port == 0 || load->port > 65535 || load->connections == 0 ||
        load->connections > 65000 || load->depth == 0 || load->depth > DEPTH_MAX)
        usage_error();
}

int main(int argc, char **argv)
{
    static struct load load = { .connections = 100, .depth = 1, .seconds = 2 };
    struct rlimit files;

    parse(&load, argc, argv);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (unsigned i = 0; i < load.depth; i++)
        memcpy(load.requests + i * REQUEST_BYTES, REQUEST, REQUEST_BYTES);
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    load.connection = calloc(load.connections, sizeof *load.connection);
    if (load.epoll < 0 || !load.connection)
        die("setting up");
    load.reply_bytes = measure_reply(&load);
    for (unsigned i = 0; i < load.connections; i++)
        open_connection(&load, &load.connection[i]);
    measure(&load);
    return 0;
}
