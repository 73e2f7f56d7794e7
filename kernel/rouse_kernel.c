/* SPDX-License-Identifier: MIT */
/*
 * rouse-kernel - measures what the kernel's scheduler does with the threads of some processes, by BPF. The command
 * `rouse` starts it and reads what it prints.
 *
 * rouse-kernel watch PID...         The threads of these processes.
 * rouse-kernel run THREAD LIBRARY   The next process that this thread makes, where librouse-preload.so is this LIBRARY.
 * rouse-kernel count                System calls and signals: see counting.c.
 *
 * It prints `ready` when everything is watched, and the sums when its standard input ends. An error is one line on
 * standard error, and the status 1.
 *
 * A line is words with tabs between them; the first says what it is. Times are ns. A name is last, since it may have
 * anything in it but a tab or a newline.
 *   now        ns
 *   thread     id, number, process, state, since when, from when on it was watched, voluntary switches, involuntary
 *              ones, CPU time, time in the run queue without a sleep before it, the longest of those, call, name
 *   sleep      thread's id, call, what is known of the recorded wait, its kind and site (hexadecimal), count, asleep,
 *              longest, in the run queue after it, longest, waker's number, its name
 *   at         thread's id, address of the futex that it sleeps for or slept for last (hexadecimal; 0: none), and the
 *              id of its call path
 *   in         of the sleep before it: address of the futex (hexadecimal; 0: none), ids of the call paths of the thread
 *              and of its waker (0: unknown)
 *   place      id of a call path, process, then hexadecimal: where its program's code begins, address of the
 *              instruction, registers (stack, frame, link), and the bytes of the stack
 *   image      process: the lines `map` that follow are those of its /proc/PID/maps that have code or a file
 *   lock       address (hexadecimal), the kernel's flags, count, time waited, longest, addresses of code from the
 *              innermost on (hexadecimal)
 *   lost       threads, sleeps, processes that are recorded, locks, call paths
 */
#include <linux/types.h>

#include "counting.h"
#include "loader.h"
#include "shared.h"
#include <switches.h>

#include <bpf/bpf.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAPPINGS_MOST 65536

/* System calls in which threads sleep. Others are shown by number. */
#define CALL(name) \
    { \
        SYS_##name, #name \
    }
/* clang-format off */
static const struct {
    long number;
    const char *name;
} calls[] = {
    CALL(read), CALL(write), CALL(readv), CALL(writev), CALL(pread64), CALL(pwrite64),
    CALL(recvfrom), CALL(sendto), CALL(recvmsg), CALL(sendmsg), CALL(recvmmsg), CALL(sendmmsg),
    CALL(sendfile), CALL(splice), CALL(accept), CALL(accept4), CALL(connect), CALL(fsync),
    CALL(fdatasync), CALL(openat), CALL(close), CALL(ppoll), CALL(pselect6), CALL(epoll_pwait),
    CALL(epoll_pwait2), CALL(futex), CALL(futex_waitv), CALL(nanosleep), CALL(clock_nanosleep),
    CALL(sched_yield), CALL(wait4), CALL(waitid), CALL(rt_sigtimedwait), CALL(rt_sigsuspend),
    CALL(flock), CALL(fcntl), CALL(ioctl), CALL(mmap), CALL(munmap), CALL(mprotect), CALL(madvise),
    CALL(mremap), CALL(brk), CALL(clone), CALL(clone3), CALL(execve), CALL(exit), CALL(exit_group),
    CALL(io_uring_enter), CALL(io_getevents), CALL(semtimedop), CALL(msgrcv), CALL(msgsnd),
    CALL(restart_syscall), CALL(unlinkat), CALL(renameat2), CALL(fallocate), CALL(ftruncate),
    CALL(getdents64), CALL(newfstatat), CALL(membarrier),
#ifdef SYS_poll /* not on AArch64 */
    CALL(poll), CALL(select), CALL(epoll_wait), CALL(pause), CALL(open), CALL(fork), CALL(vfork),
    CALL(unlink), CALL(rename),
#endif
};
/* clang-format on */

static const char *call_name(int number)
{
    static char text[16];
    if (number < 0)
        return "-";
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (calls[i].number == number)
            return calls[i].name;
    (void)snprintf(text, sizeof(text), "%d", number);
    return text;
}

/* A name that the program has chosen, limited to printable text of one line. */
static const char *clean(const char *name)
{
    static char text[RSI_BPF_NAME + 1];
    size_t i = 0;
    for (; i < RSI_BPF_NAME && name[i]; i++)
        text[i] = (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i];
    text[i] = 0;
    return text;
}

static void print_threads(int map)
{
    struct rsi_bpf_thread t;
    for (__u32 key, *at = NULL; bpf_map_get_next_key(map, at, &key) == 0; at = &key) {
        if (bpf_map_lookup_elem(map, &key, &t) < 0)
            continue;
        printf("thread\t%u\t%u\t%u\t%u\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%s\t%s\n", t.id,
               t.tid, t.tgid, t.state, t.since_ns, t.first_ns, t.voluntary, t.involuntary, t.cpu_ns,
               t.queued_ns, t.queued_most_ns, call_name(t.key.call), clean(t.name));
        if (t.key.place)
            printf("at\t%u\t%llx\t%u\n", t.id, t.key.object, t.key.place);
    }
}

static void print_sleeps(int map)
{
    struct rsi_bpf_sleep s;
    for (struct rsi_bpf_sleep_key key, *at = NULL; bpf_map_get_next_key(map, at, &key) == 0;
         at = &key) {
        if (bpf_map_lookup_elem(map, &key, &s) == 0) {
            printf("sleep\t%u\t%s\t%u\t%u\t%llx\t%llu\t%llu\t%llu\t%llu\t%llu\t%u\t%s\n",
                   key.thread, call_name(key.call), key.join, key.kind, key.site, s.count,
                   s.asleep_ns, s.asleep_most_ns, s.queued_ns, s.queued_most_ns, key.waker,
                   clean(s.waker_name));
            if (key.place || key.waker_place)
                printf("in\t%llx\t%u\t%u\n", key.object, key.place, key.waker_place);
        }
    }
}

static void print_places(int map)
{
    static struct rsi_bpf_place place;
    for (struct rsi_bpf_place_key key, *at = NULL; bpf_map_get_next_key(map, at, &key) == 0;
         at = &key) {
        if (bpf_map_lookup_elem(map, &key, &place) < 0)
            continue;
        printf("place\t%u\t%u\t%llx\t%llx\t%llx\t%llx\t%llx\t", place.id, key.tgid, key.program,
               key.ip, place.sp, place.bp, place.link);
        for (__u32 i = 0; i < place.bytes && i < RSI_BPF_STACK_BYTES; i++)
            printf("%02x", place.stack[i]);
        putchar('\n');
    }
}

static void print_locks(int map, int stacks)
{
    struct rsi_bpf_lock sum;
    for (struct rsi_bpf_lock_key key, *at = NULL; bpf_map_get_next_key(map, at, &key) == 0;
         at = &key) {
        __u64 frames[RSI_BPF_FRAMES] = { 0 };
        if (bpf_map_lookup_elem(map, &key, &sum) < 0)
            continue;
        if (key.stack >= 0)
            (void)bpf_map_lookup_elem(stacks, &key.stack, frames);
        printf("lock\t%llx\t%u\t%llu\t%llu\t%llu", key.lock, key.flags, sum.count, sum.wait_ns,
               sum.wait_most_ns);
        for (size_t i = 0; i < RSI_BPF_FRAMES && frames[i]; i++)
            printf("\t%llx", frames[i]);
        putchar('\n');
    }
}

/* The memory of the processes that have call paths, as it was when the first of them was seen. */
static struct images {
    FILE *text; /* printed at the end, since nobody reads before */
    char *data;
    size_t bytes;
    struct {
        __u64 program;
        __u32 tgid;
    } known[RSI_BPF_PLACES];
    size_t count;
} images;

/* It may have ended already. */
static void image_add(__u32 tgid)
{
    char path[64], *line = NULL;
    size_t room = 0, lines = 0;
    (void)snprintf(path, sizeof(path), "/proc/%u/maps", tgid);
    FILE *maps = fopen(path, "re");
    if (!maps)
        return;
    (void)fprintf(images.text, "image\t%u\n", tgid);
    while (lines < MAPPINGS_MOST && getline(&line, &room, maps) > 0) {
        bool is_code = strcspn(line, "x") < strcspn(line, "\n[/");
        if (!is_code && !strchr(line, '/'))
            continue;
        (void)fprintf(images.text, "map\t%s", line);
        lines++;
    }
    free(line);
    (void)fclose(maps);
}

static bool image_is_known(const struct rsi_bpf_place_key *key)
{
    for (size_t i = 0; i < images.count; i++)
        if (images.known[i].tgid == key->tgid && images.known[i].program == key->program)
            return true;
    return false;
}

/* Look for processes that have their first call path. */
static void images_look(int places)
{
    for (struct rsi_bpf_place_key key, *at = NULL; bpf_map_get_next_key(places, at, &key) == 0;
         at = &key) {
        if (image_is_known(&key) || images.count == RSI_BPF_PLACES)
            continue;
        images.known[images.count].tgid = key.tgid;
        images.known[images.count++].program = key.program;
        image_add(key.tgid);
    }
}

/* They may have loaded libraries since. */
static void images_print(void)
{
    size_t count = images.count;
    for (size_t i = 0; i < count; i++)
        image_add(images.known[i].tgid);
    if (fclose(images.text) == 0)
        (void)fwrite(images.data, 1, images.bytes, stdout);
    free(images.data);
}

/* Make the BPF program look at the existing threads. */
static void look(const struct bpf_link *link)
{
    char none[64];
    int fd = bpf_iter_create(bpf_link__fd(link));
    if (fd < 0)
        rsi_bpf_die("cannot list the threads", errno);
    while (read(fd, none, sizeof(none)) > 0)
        ;
    close(fd);
}

static struct bpf_link *attach(struct bpf_program *program, const char *library)
{
    LIBBPF_OPTS(bpf_uprobe_opts, options, .func_name = "rouse_preload_join");
    if (strcmp(bpf_program__name(program), "note_recorder") != 0)
        return bpf_program__attach(program);
    return bpf_program__attach_uprobe_opts(program, -1, library, 0, &options);
}

static int pass_over(void *any, void *data, size_t bytes)
{
    (void)any;
    (void)data;
    (void)bytes;
    return 0;
}

static void wait_for_end(const struct bpf_object *object)
{
    int news = rsi_bpf_map(object, "news"), places = rsi_bpf_map(object, "places");
    struct pollfd polls[] = { { STDIN_FILENO, POLLIN, 0 }, { news, POLLIN, 0 } };
    struct ring_buffer *ring = ring_buffer__new(news, pass_over, NULL, NULL);
    images.text = open_memstream(&images.data, &images.bytes);
    if (!ring || !images.text)
        rsi_bpf_die("images", errno);
    for (;;) {
        char any[64];
        (void)ring_buffer__consume(ring);
        images_look(places);
        if (poll(polls, 2, -1) > 0 && polls[0].revents && read(STDIN_FILENO, any, sizeof(any)) <= 0)
            break;
    }
    images_look(places);
    ring_buffer__free(ring);
}

/* library: the library that records the programs. NULL: none. */
static void watch(struct bpf_object *object, const char *library)
{
    struct bpf_program *program;
    struct bpf_link *links[16];
    size_t count = 0;
    const struct bpf_link *begin = NULL;
    bpf_object__for_each_program(program, object)
    {
        const char *name = bpf_program__name(program);
        if (strcmp(name, "note_recorder") == 0 && !library)
            continue;
        struct bpf_link *link = attach(program, library);
        if (!link)
            rsi_bpf_die("cannot attach to the kernel's scheduler events", errno);
        links[count++] = link;
        if (strcmp(name, "begin") == 0)
            begin = link;
    }
    look(begin);
    puts("ready");
    (void)fflush(stdout);
    wait_for_end(object);
    while (count)
        bpf_link__destroy(links[--count]);
}

static void print_all(struct bpf_object *object)
{
    struct timespec now;
    __u64 lost[RSI_BPF_LOST_KINDS] = { 0 };
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("now\t%llu\n",
           (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    print_threads(rsi_bpf_map(object, "threads"));
    print_threads(rsi_bpf_map(object, "ended"));
    print_sleeps(rsi_bpf_map(object, "sleeps"));
    print_places(rsi_bpf_map(object, "places"));
    images_print();
    print_locks(rsi_bpf_map(object, "locks"), rsi_bpf_map(object, "stacks"));
    for (__u32 kind = 0; kind < RSI_BPF_LOST_KINDS; kind++)
        (void)bpf_map_lookup_elem(rsi_bpf_map(object, "lost"), &kind, &lost[kind]);
    fputs("lost", stdout);
    for (size_t kind = 0; kind < RSI_BPF_LOST_KINDS; kind++)
        printf("\t%llu", lost[kind]);
    putchar('\n');
}

static void want(struct bpf_object *object, const char *number, __u32 what)
{
    __u32 key = (__u32)strtoul(number, NULL, 10);
    if (bpf_map_update_elem(rsi_bpf_map(object, "processes"), &key, &what, BPF_ANY) < 0)
        rsi_bpf_die(number, errno);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "count") == 0) {
        rsi_bpf_count();
        return ferror(stdout) || fflush(stdout) != 0;
    }
    bool is_run = argc == 4 && strcmp(argv[1], "run") == 0;
    if (!is_run && (argc < 3 || strcmp(argv[1], "watch") != 0)) {
        (void)fputs("usage: rouse-kernel watch PID... | run THREAD LIBRARY | count\n", stderr);
        return 2;
    }
    struct bpf_object *object = rsi_bpf_open(switches, sizeof(switches));
    int error = bpf_object__load(object);
    if (error < 0)
        rsi_bpf_die("the kernel refused to load the BPF program", error);
    if (is_run)
        want(object, argv[2], RSI_BPF_CHILD);
    for (int i = 2; !is_run && i < argc; i++)
        want(object, argv[i], RSI_BPF_PROCESS);
    watch(object, is_run ? argv[3] : NULL);
    print_all(object);
    bpf_object__close(object);
    return ferror(stdout) || fflush(stdout) != 0;
}
