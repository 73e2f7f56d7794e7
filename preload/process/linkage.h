/* SPDX-License-Identifier: MIT */
/* linkage.h - visibility of the library's symbols. */
#ifndef RPI_PROCESS_LINKAGE_H
#define RPI_PROCESS_LINKAGE_H

/* A call that takes the place of libc's, or that librouse or the kernel recorder finds by name. */
#define RPI_EXPORT __attribute__((visibility("default")))
/* A variable that several files use. Without this attribute each access would load the variable's address first. */
#define RPI_HIDDEN __attribute__((visibility("hidden")))

#endif
