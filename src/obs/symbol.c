/* SPDX-License-Identifier: MIT */
/*
 * symbol.c - reads the symbol tables of ELF files.
 *
 * The tables are copied by pread, not mapped, so a file that is truncated meanwhile does no harm. A file that is no
 * longer the one that was loaded (after an upgrade) is recognized by its ELF header, which contains the file's
 * layout, and is ignored.
 */
#include "obs/symbol.h"

#include "core/observe.h"
#include "obs/module.h"
#include "os/os.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <string.h>

/* Read all bytes. False: that failed. */
static bool read_at(int fd, void *buffer, size_t bytes, uint64_t offset)
{
    char *to = buffer;
    while (bytes) {
        long got = rsi_syscall4(SYS_pread64, fd, to, bytes, offset);
        if (got <= 0)
            return false;
        to += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

static char *read_section(int fd, const Elf64_Shdr *section, size_t *bytes)
{
    if (section->sh_size == 0 || section->sh_size > SIZE_MAX / 2)
        return NULL;
    char *copy = rsi_map(section->sh_size);
    if (copy && !read_at(fd, copy, section->sh_size, section->sh_offset)) {
        rsi_unmap(copy, section->sh_size);
        copy = NULL;
    }
    *bytes = copy ? section->sh_size : 0;
    return copy;
}

/* Read the symbol table, or else the dynamic symbol table, and its strings. */
static void read_tables(int fd, const Elf64_Ehdr *header, struct rsi_module *m)
{
    Elf64_Shdr section = { 0 }, symbols = { .sh_type = SHT_NULL }, strings = { 0 };
    if (header->e_shentsize != sizeof section)
        return;
    for (unsigned i = 0; i < header->e_shnum && symbols.sh_type != SHT_SYMTAB; i++) {
        if (!read_at(fd, &section, sizeof section, header->e_shoff + i * sizeof section))
            return;
        if (section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM)
            symbols = section;
    }
    if (symbols.sh_type == SHT_NULL || symbols.sh_link >= header->e_shnum ||
        !read_at(fd, &strings, sizeof strings, header->e_shoff + symbols.sh_link * sizeof strings))
        return;
    m->table = read_section(fd, &symbols, &m->table_bytes);
    m->strings = read_section(fd, &strings, &m->strings_bytes);
    if (m->strings)
        m->strings[m->strings_bytes - 1] = 0;
}

static void name_module(struct rsi_module *m, const char *path)
{
    const char *slash = strrchr(path, '/');
    rsi_format(m->name, sizeof m->name, "%s", slash ? slash + 1 : path);
}

/*
 * Name the program's own module and return its path. /proc/self shows nothing once main() has ended by
 * pthread_exit.
 */
static const char *name_program(struct rsi_module *m)
{
    static const char *const paths[] = { "/proc/self/exe", "/proc/thread-self/exe" };
    char target[256];
    for (unsigned i = 0; i < 2; i++) {
        long length = rsi_syscall4(SYS_readlinkat, AT_FDCWD, paths[i], target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        name_module(m, target);
        return paths[i];
    }
    name_module(m, "program");
    return paths[0];
}

/*
 * Where the file's header is mapped: before the part that was found, if the program has gaps between its segments.
 */
static const void *header_of(const struct dl_find_object *object)
{
    const struct rsi_module_headers headers = rsi_module_headers_of(object);
    for (size_t i = 0; i < headers.count; i++)
        if (headers.first[i].p_type == PT_LOAD && headers.first[i].p_offset == 0)
            return (const char *)object->dlfo_link_map->l_addr + headers.first[i].p_vaddr;
    return object->dlfo_map_start;
}

static void load(struct rsi_module *m, const struct dl_find_object *object)
{
    const char *path = object->dlfo_link_map->l_name;
    m->start = (uintptr_t)object->dlfo_map_start;
    m->end = (uintptr_t)object->dlfo_map_end;
    m->bias = object->dlfo_link_map->l_addr;
    if (path && *path)
        name_module(m, path);
    else
        path = name_program(m);
    Elf64_Ehdr header = { 0 };
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (read_at(fd, &header, sizeof header, 0) &&
        memcmp(&header, header_of(object), sizeof header) == 0)
        read_tables(fd, &header, m);
    rsi_syscall1(SYS_close, fd);
}

static const struct rsi_module *find_module(struct rsi_symbols *symbols, uintptr_t address)
{
    struct dl_find_object object;
    for (unsigned i = 0; i < RSI_MODULES_MAX; i++) {
        struct rsi_module *m = &symbols->modules[i];
        if (m->end == 0) {
            if (_dl_find_object((void *)address, &object) != 0)
                return NULL;
            load(m, &object);
        }
        if (address >= m->start && address < m->end)
            return m;
    }
    return NULL;
}

/* A symbol without a size may end anywhere, and is ignored. */
static void find_symbol(const struct rsi_module *m, struct rsi_found *found)
{
    uint64_t at = found->address - m->bias;
    for (size_t i = 0; m->strings && (i + 1) * sizeof(Elf64_Sym) <= m->table_bytes; i++) {
        const Elf64_Sym *s = (const Elf64_Sym *)(void *)m->table + i;
        unsigned type = ELF64_ST_TYPE(s->st_info);
        if (s->st_shndx == SHN_UNDEF || at < s->st_value || at - s->st_value >= s->st_size ||
            s->st_name >= m->strings_bytes ||
            (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE))
            continue;
        found->symbol = m->strings + s->st_name;
        found->offset = at - s->st_value;
        return;
    }
}

static const struct rsi_found *find(struct rsi_symbols *symbols, uintptr_t address)
{
    uint64_t hash = address * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    struct rsi_found *found = &symbols->cache[hash % RSI_SYMBOLS_CACHED];
    if (found->address == address)
        return found;
    *found = (struct rsi_found){ .address = address, .module = find_module(symbols, address) };
    if (found->module)
        find_symbol(found->module, found);
    return found;
}

size_t rsi_symbol_format(struct rsi_symbols *symbols, const void *address, char *buffer,
                         size_t bytes)
{
    const struct rsi_found *found = find(symbols, (uintptr_t)address);
    const struct rsi_module *m = found->module;
    if (!m)
        return rsi_format(buffer, bytes, "0x%lx", found->address);
    uint64_t in_module = found->address - m->bias;
    if (!found->symbol)
        return rsi_format(buffer, bytes, "%s+0x%lx", m->name, in_module);
    return rsi_format(buffer, bytes, "%s+0x%lx (%s+0x%lx)", found->symbol, found->offset, m->name,
                      in_module);
}

size_t rsi_obs_site_format(const void *site, char *buffer, size_t bytes)
{
    struct rsi_symbols *symbols = rsi_map(sizeof *symbols);
    if (!symbols)
        return rsi_format(buffer, bytes, "%p", site);
    size_t used = rsi_symbol_format(symbols, (const char *)site - 1, buffer, bytes);
    rsi_symbols_end(symbols);
    rsi_unmap(symbols, sizeof *symbols);
    return used;
}

void rsi_symbols_end(struct rsi_symbols *symbols)
{
    for (unsigned i = 0; i < RSI_MODULES_MAX; i++) {
        struct rsi_module *m = &symbols->modules[i];
        if (m->table)
            rsi_unmap(m->table, m->table_bytes);
        if (m->strings)
            rsi_unmap(m->strings, m->strings_bytes);
    }
}
