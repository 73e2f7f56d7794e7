/* SPDX-License-Identifier: MIT */
/*
 * ld_shim.c - librouse-run.so, the library that LD_PRELOAD names. It contains only the name of librouse-preload.so as
 * an auxiliary library (DT_AUXILIARY), which glibc's dynamic loader then loads.
 *
 * Problem: musl's loader reads LD_PRELOAD too, maps what it names, and ends the program if a library or a symbol of it
 * is missing. librouse-preload.so requires glibc. musl's loader ignores DT_AUXILIARY, and an empty library requires
 * nothing, so a program for musl runs, whether we or a shell started it.
 *
 * Rejected: not to preload into a program for musl, because its parent may be for glibc. Weak references, because
 * libgcc_s.so.1 would still be required. Defining both __libc_start_main and stdin, by which musl's loader recognises
 * libraries that it must not load, because dlsym would find our definitions.
 */
