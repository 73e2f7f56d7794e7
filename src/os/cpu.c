/* SPDX-License-Identifier: MIT */
/* cpu.c - how many CPUs this process may use. */
#include "os/os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_file(const char *path, char *buffer, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, buffer, bytes - 1);
    close(fd);
    if (n < 0)
        return false;
    buffer[n] = 0;
    return true;
}

/* The quota of one cgroup folder in CPUs, rounded up. UINT32_MAX: it has none. */
static unsigned folder_quota(const char *folder, bool is_v2)
{
    char path[4352], text[64];
    long quota = -1, period = 0;
    if (is_v2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_file(path, text, sizeof text) || sscanf(text, "%ld %ld", &quota, &period) != 2)
            return UINT32_MAX;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_file(path, text, sizeof text) || sscanf(text, "%ld", &quota) != 1)
            return UINT32_MAX;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_file(path, text, sizeof text) || sscanf(text, "%ld", &period) != 1)
            return UINT32_MAX;
    }
    if (quota <= 0 || period <= 0)
        return UINT32_MAX;
    return (unsigned)((quota + period - 1) / period);
}

/* Every quota between the process's own group and the root applies. */
static unsigned path_quota(const char *mount, char *group, bool is_v2)
{
    unsigned least = UINT32_MAX;
    char folder[4224];
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        unsigned quota = folder_quota(folder, is_v2);
        if (quota < least)
            least = quota;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Whether a comma-separated list of controllers, as in version 1, contains the one for CPU time. */
static bool names_cpu(const char *controllers)
{
    while (*controllers) {
        size_t length = strcspn(controllers, ",");
        if (length == 3 && strncmp(controllers, "cpu", 3) == 0)
            return true;
        controllers += length + (controllers[length] == ',');
    }
    return false;
}

unsigned rsi_cpu_quota(const char *cgroup_file, const char *mount)
{
    FILE *file = fopen(cgroup_file, "re");
    if (!file)
        return UINT32_MAX;
    unsigned least = UINT32_MAX;
    char line[4096], mount_v1[256];
    snprintf(mount_v1, sizeof mount_v1, "%s/cpu", mount);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        unsigned quota = UINT32_MAX;
        if (*controllers == 0)
            quota = path_quota(mount, group, true);
        else if (names_cpu(controllers))
            quota = path_quota(mount_v1, group, false);
        if (quota < least)
            least = quota;
    }
    fclose(file);
    return least;
}

unsigned rsi_cpu_count(void)
{
    unsigned cpus = rsi_cpu_affinity();
    unsigned quota = rsi_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < cpus ? quota : cpus;
}
