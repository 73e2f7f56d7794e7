/* SPDX-License-Identifier: MIT */
/*
 * stdio.c - calls in which libc closes a descriptor by itself: it does not come to our close.
 *
 * fcloseall is none of them: it writes out what is buffered, and all numbers stay open. Streams that have no descriptor
 * (fmemopen, fopencookie) have the number -1.
 */
#undef _FILE_OFFSET_BITS /* freopen would be another name for freopen64 */

#include "preload.h"

static int number_of(FILE *stream)
{
    int error = errno, fd = fileno(stream);
    errno = error;
    return fd;
}

/* libc says EINVAL of a folder that is NULL, and declares that there is none: that is not to be relied on. */
static int number_of_folder(DIR *folder)
{
    __asm__("" : "+r"(folder));
    return folder ? dirfd(folder) : -1;
}

RPI_EXPORT RSI_NOINLINE int fclose(FILE *stream)
{
    rpi_real_find();
    rpi_descriptor_closed(number_of(stream));
    return rpi_real.fclose(stream);
}

RPI_EXPORT RSI_NOINLINE int pclose(FILE *stream)
{
    rpi_real_find();
    rpi_descriptor_closed(number_of(stream));
    return rpi_real.pclose(stream);
}

RPI_EXPORT RSI_NOINLINE int closedir(DIR *folder)
{
    rpi_real_find();
    rpi_descriptor_closed(number_of_folder(folder));
    return rpi_real.closedir(folder);
}

/* The number stays the stream's, so another thread may have asked what it is before it was made anew. */
static FILE *reopen(FILE *reopen_real(const char *, const char *, FILE *), const char *path,
                    const char *mode, FILE *stream)
{
    int fd = number_of(stream);
    rpi_descriptor_closed(fd);
    FILE *result = reopen_real(path, mode, stream);
    if (result)
        rpi_descriptor_made(fd, RPI_FD_UNKNOWN);
    return result;
}

RPI_EXPORT RSI_NOINLINE FILE *freopen(const char *path, const char *mode, FILE *stream)
{
    rpi_real_find();
    return reopen(rpi_real.freopen, path, mode, stream);
}

RPI_EXPORT RSI_NOINLINE FILE *freopen64(const char *path, const char *mode, FILE *stream)
{
    rpi_real_find();
    return reopen(rpi_real.freopen64, path, mode, stream);
}
