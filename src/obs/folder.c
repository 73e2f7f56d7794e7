/* SPDX-License-Identifier: MIT */
/*
 * folder.c - the folder of the shared files, and which of the files belong to processes that have ended.
 *
 * Rejected: files named by PID in a folder that others may write to. Another user could place a symbolic link
 * there. The folder belongs to the user, and is checked through its descriptor. Its name is known, so that another
 * user may take it first. Then a folder with a random name is used, which readers find by its prefix and its owner.
 * Whether the process of a file is alive is checked by its PID. In another PID namespace that number belongs to
 * another process or none, so the file also has a lock (flock). The mapping holds the lock as well: it ends when
 * the process ends or calls exec, not when the descriptor is closed.
 */
#include "obs/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE "/dev/shm"
#define FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

#define DEAD_KEPT 8 /* files of killed processes that are kept */

/*
 * ROUSE_OBS_DIR as it was when this process, or the one that it was forked from, first created a file: a server may
 * clear its environment before it forks its workers.
 */
static char folder_asked[256];

struct dead {
    char name[RSI_FOLDER_NAME_BYTES];
    int64_t modified_ns;
};

int rsi_folder_failed(char *reason, size_t bytes, const char *what, const char *path)
{
    int error = errno;
    rsi_format(reason, bytes, "%s %s: error %d", what, path, error);
    return -error;
}

static bool is_private(int fd, struct stat *status)
{
    return fstat(fd, status) == 0 && status->st_uid == geteuid() && (status->st_mode & 077) == 0;
}

/* *is_taken: something else is there. */
static int open_at(const char *path, bool *is_taken, char *reason, size_t bytes)
{
    *is_taken = false;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return rsi_folder_failed(reason, bytes, "cannot make", path);
    int fd = open(path, FOLDER);
    struct stat status;
    if (fd < 0) {
        int error = errno;
        *is_taken = error != EMFILE && error != ENFILE && error != ENOMEM;
        if (lstat(path, &status) == 0 && S_ISLNK(status.st_mode)) {
            rsi_format(reason, bytes, "%s is a symbolic link, made by user %u", path,
                       status.st_uid);
            return -EEXIST;
        }
        errno = error;
        return rsi_folder_failed(reason, bytes, "cannot open", path);
    }
    if (!is_private(fd, &status)) {
        close(fd);
        *is_taken = true;
        rsi_format(reason, bytes,
                   "%s must belong to this user and have mode 0700; it is of user %u, mode %o",
                   path, status.st_uid, status.st_mode & 07777u);
        return -EEXIST;
    }
    return fd;
}

/*
 * Open this user's folder with a name that nobody can foresee, and write its name after the prefix. Those of others
 * are passed over, so that they can take no name from us. Returns a descriptor, or -1.
 */
static int spare_open(char *name, size_t bytes)
{
    size_t prefix = strlen(name);
    struct stat status;
    DIR *list = opendir(PLACE);
    if (!list)
        return -1;
    int fd = -1;
    for (struct dirent *entry; fd < 0 && (entry = readdir(list));) {
        if (strncmp(entry->d_name, name, prefix) != 0 || strlen(entry->d_name) >= bytes)
            continue;
        fd = openat(dirfd(list), entry->d_name, FOLDER);
        if (fd >= 0 && !is_private(fd, &status)) {
            close(fd);
            fd = -1;
        } else if (fd >= 0)
            memcpy(name, entry->d_name, strlen(entry->d_name) + 1);
    }
    uint64_t chance;
    if (fd < 0 && getrandom(&chance, sizeof chance, 0) == (ssize_t)sizeof chance) {
        rsi_format(name + prefix, bytes - prefix, "%lx", (unsigned long)chance);
        if (mkdirat(dirfd(list), name, 0700) == 0)
            fd = openat(dirfd(list), name, FOLDER);
        if (fd >= 0 && !is_private(fd, &status)) {
            close(fd);
            fd = -1;
        }
    }
    closedir(list);
    return fd;
}

int rsi_folder_open(char *reason, size_t bytes)
{
    char path[256], why[160], name[64];
    bool is_taken;
    const char *asked = secure_getenv("ROUSE_OBS_DIR");
    reason[0] = 0;
    if (asked && *asked)
        rsi_format(folder_asked, sizeof folder_asked, "%s", asked);
    if (*folder_asked)
        return open_at(folder_asked, &is_taken, reason, bytes);
    rsi_format(path, sizeof path, PLACE "/rouse-%u", geteuid());
    int fd = open_at(path, &is_taken, why, sizeof why);
    if (fd >= 0)
        return fd;
    int error = fd;
    rsi_format(name, sizeof name, "rouse-%u-", geteuid());
    fd = is_taken ? spare_open(name, sizeof name) : -1;
    if (fd < 0)
        rsi_format(reason, bytes, "%s", why);
    else
        rsi_format(reason, bytes, "%s, so " PLACE "/%s is used", why, name);
    return fd < 0 ? error : fd;
}

bool rsi_folder_has_lock(int fd)
{
    return flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

/* Whether the process of a file in another PID namespace may be alive. */
static bool may_be_alive(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return true;
    uint32_t is_locked = 0;
    ssize_t got =
        pread(fd, &is_locked, sizeof is_locked, offsetof(struct rsi_store_head, is_locked));
    bool may = got != sizeof is_locked || !is_locked || rsi_folder_has_lock(fd);
    close(fd);
    return may;
}

static bool is_alive(int folder, const char *name, uint64_t pid_namespace)
{
    char *end;
    long pid = strtol(name, &end, 10);
    uint64_t its = *end == '-' ? strtoull(end + 1, NULL, 10) : RSI_STORE_INITIAL_PIDS;
    if (its != pid_namespace)
        return may_be_alive(folder, name);
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno != ESRCH);
}

void rsi_folder_clean(int folder, uint64_t pid_namespace)
{
    int fd = dup(folder);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dead kept[DEAD_KEPT + 1];
    size_t count = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct stat status;
        struct dead dead;
        size_t length = strlen(entry->d_name);
        if (length < 7 || length >= sizeof dead.name ||
            strcmp(entry->d_name + length - 6, ".rouse") != 0 ||
            is_alive(folder, entry->d_name, pid_namespace) ||
            fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        memcpy(dead.name, entry->d_name, length + 1);
        dead.modified_ns = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
        size_t at = count;
        for (; at > 0 && kept[at - 1].modified_ns < dead.modified_ns; at--)
            kept[at] = kept[at - 1];
        kept[at] = dead;
        if (++count > DEAD_KEPT)
            unlinkat(folder, kept[--count].name, 0);
    }
    if (list)
        closedir(list);
    else if (fd >= 0)
        close(fd);
}
