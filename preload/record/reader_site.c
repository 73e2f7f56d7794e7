/* SPDX-License-Identifier: MIT */
/* reader_site.c - the table of the places where read-write locks were last acquired for reading. */
#include "record/reader_site.h"

uint64_t rpi_reader_sites[RPI_READER_SITES];
