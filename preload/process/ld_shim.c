/* SPDX-License-Identifier: MIT */
/*
 * ld_shim.c - librouse-run.so, which is what LD_PRELOAD names. There is nothing in it but the name of librouse-preload.so,
 * as of a library that goes before it if it can be had (DT_AUXILIARY): glibc's dynamic loader loads that one then.
 *
 * Problem: musl's loader knows LD_PRELOAD too, maps what it names, and ends a program for which a library of that, or
 * a call, is not there; librouse-preload.so wants glibc's. It does not know DT_AUXILIARY, and an empty library needs
 * nothing: so a program for musl runs, whether it was started by us or by a shell.
 * Rejected: not to preload where the program is for musl: its parent may be for glibc. Weak references: libgcc_s.so.1
 * is needed all the same. Both __libc_start_main and stdin, by which musl's loader knows libraries that it must not
 * take: dlsym would find ours.
 */
