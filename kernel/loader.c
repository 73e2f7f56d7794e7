/* SPDX-License-Identifier: MIT */
/* loader.c - opens the BPF programs of rouse-kernel. */
#include "loader.h"

#include <errno.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INITIAL_NAMESPACE 0xeffffffcu /* inode of the first PID namespace: PROC_PID_INIT_INO */

static char complaint[512]; /* print only libbpf's first message; the others follow from it */

__attribute__((format(printf, 2, 0))) static int complain(enum libbpf_print_level level,
                                                          const char *format, va_list words)
{
    if (level == LIBBPF_WARN && !complaint[0])
        (void)vsnprintf(complaint, sizeof(complaint), format, words);
    return 0;
}

_Noreturn void rsi_bpf_die(const char *what, int error)
{
    complaint[strcspn(complaint, "\n")] = 0;
    (void)fprintf(stderr, "%s: %s%s%s\n", what, strerror(error < 0 ? -error : error),
                  complaint[0] ? ": " : "", complaint);
    exit(1);
}

static void use_own_namespace(const struct bpf_object *object)
{
    struct stat own;
    if (stat("/proc/self/ns/pid", &own) != 0)
        rsi_bpf_die("/proc/self/ns/pid", errno);
    __u32 number = own.st_ino == INITIAL_NAMESPACE ? 0 : (__u32)own.st_ino;
    struct bpf_map *map = bpf_object__find_map_by_name(object, "rouse.rodata");
    int error = map ? bpf_map__set_initial_value(map, &number, sizeof(number)) : -ENOENT;
    if (error < 0)
        rsi_bpf_die("pid_namespace", error);
}

struct bpf_object *rsi_bpf_open(const unsigned char *bytes, size_t size)
{
    libbpf_set_print(complain);
    LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "rouse");
    struct bpf_object *object = bpf_object__open_mem(bytes, size, &options);
    if (!object)
        rsi_bpf_die("the BPF program", errno);
    use_own_namespace(object);
    return object;
}

int rsi_bpf_map(const struct bpf_object *object, const char *name)
{
    int fd = bpf_object__find_map_fd_by_name(object, name);
    if (fd < 0)
        rsi_bpf_die(name, fd);
    return fd;
}
