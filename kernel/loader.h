/* SPDX-License-Identifier: MIT */
/* loader.h - opens the BPF programs of rouse-kernel. Errors are one line on standard error, and end the program. */
#ifndef RSI_KERNEL_LOADER_H
#define RSI_KERNEL_LOADER_H

#include <bpf/libbpf.h>

/* error: an error number of either sign. */
_Noreturn void rsi_bpf_die(const char *what, int error);

/* Open an object that has pid_namespace: its numbers of processes and threads are those of this program. */
struct bpf_object *rsi_bpf_open(const unsigned char *bytes, size_t size);

/* The descriptor of a map of a loaded object. */
int rsi_bpf_map(const struct bpf_object *object, const char *name);

#endif
