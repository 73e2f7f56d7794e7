/* SPDX-License-Identifier: MIT */
/*
 * stdio.c - fopen and its kin: where a stream was opened, by which reports call its lock. And fclose and other calls
 * that close a descriptor inside libc, without calling our close.
 *
 * fcloseall is not one of them: it only flushes the buffers, and all descriptors stay open. A stream without a
 * descriptor (fmemopen, fopencookie) has the number -1.
 */
#undef _FILE_OFFSET_BITS /* otherwise fopen and freopen would be other names for fopen64 and freopen64 */

#include "hooks/descriptors.h"

#include "accept/descriptor.h"
#include "process/real.h"
#include "record/init_site.h"

static FILE *opened(FILE *stream, const void *site)
{
    if (stream && !rpi_init_site_put(stream, site))
        rpi_init_site_lost();
    return stream;
}

RPI_EXPORT RSI_NOINLINE FILE *fopen(const char *path, const char *mode)
{
    rpi_real_find();
    return opened(rpi_real.fopen(path, mode), RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE FILE *fopen64(const char *path, const char *mode)
{
    rpi_real_find();
    return opened(rpi_real.fopen64(path, mode), RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE FILE *fdopen(int fd, const char *mode)
{
    rpi_real_find();
    return opened(rpi_real.fdopen(fd, mode), RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE FILE *popen(const char *command, const char *mode)
{
    rpi_real_find();
    return opened(rpi_real.popen(command, mode), RSI_CALLER());
}

static int number_of(FILE *stream)
{
    int error = errno, fd = fileno(stream);
    errno = error;
    return fd;
}

/* libc returns EINVAL for NULL, but declares the argument as nonnull, so the compiler would drop the check. */
static int number_of_folder(DIR *folder)
{
    __asm__("" : "+r"(folder));
    return folder ? dirfd(folder) : -1;
}

RPI_EXPORT RSI_NOINLINE int fclose(FILE *stream)
{
    rpi_real_find();
    rpi_descriptors_closed(number_of(stream));
    rpi_init_site_end(stream);
    return rpi_real.fclose(stream);
}

RPI_EXPORT RSI_NOINLINE int pclose(FILE *stream)
{
    rpi_real_find();
    rpi_descriptors_closed(number_of(stream));
    rpi_init_site_end(stream);
    return rpi_real.pclose(stream);
}

RPI_EXPORT RSI_NOINLINE int closedir(DIR *folder)
{
    rpi_real_find();
    rpi_descriptors_closed(number_of_folder(folder));
    return rpi_real.closedir(folder);
}

/* The stream keeps its number, so another thread may have asked for its class between the close and the reopening. */
static FILE *reopen(FILE *reopen_real(const char *, const char *, FILE *), const char *path,
                    const char *mode, FILE *stream)
{
    int fd = number_of(stream);
    rpi_descriptors_closed(fd);
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
