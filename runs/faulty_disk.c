/* Sees every call that changes a folder, writes it down with its data, and can fail one of them. Preloaded by faults.py.

Between `faults_begin` and `faults_end` every call of this process that changes what lies below a root is a place,
counted from 0. Place number `fail_at` is not made: it returns -1 and sets errno. Calls go into a log in the order in
which they were made, which power_cut.py replays. A call that fails by itself is no place. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE, WRITE, TRUNCATE, FLUSH, RENAME, LINK, REMOVE, FOLDER, REMOVE_FOLDER, NOTE };

struct record {
    uint32_t kind, failed;
    uint64_t inode;
    int64_t offset;
    uint64_t data;
    uint32_t path, other;
};

struct map { void *at; size_t length; int handle; };
static struct map maps[64];

static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char root[PATH_MAX];
static size_t root_length;
static int diary = -1, error_to_give;
static long fail_at = -1, places;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void put(const void *data, size_t size) {
    for (const char *at = data; size;) {
        long done = syscall(SYS_write, diary, at, size);
        if (done < 0) abort();
        at += done, size -= (size_t)done;
    }
}

static void put_record(int kind, int failed, uint64_t inode, int64_t offset, const void *data, size_t size,
                       const char *path, const char *other) {
    struct record said = {(uint32_t)kind, (uint32_t)failed, inode, offset, size, (uint32_t)strlen(path), (uint32_t)strlen(other)};
    put(&said, sizeof said);
    put(path, said.path);
    put(other, said.other);
    put(data, size);
}

void faults_begin(const char *below, const char *log, long at, int error) {
    root_length = strlen(strcpy(root, below));
    fail_at = at, error_to_give = error, places = 0;
    diary = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (diary < 0) abort();
}

void faults_end(void) {
    close(diary);
    diary = -1;
}

/* A word in the log, between the calls: something that must hold from here on. */
void faults_note(const char *text) {
    pthread_mutex_lock(&turn);
    if (diary >= 0) put_record(NOTE, 0, 0, 0, text, strlen(text), "", "");
    pthread_mutex_unlock(&turn);
}

static int is_ours(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int path_of(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0 && is_ours(path);
}

static int place_of(int folder, const char *name, char *path) {
    if (*name == '/') snprintf(path, PATH_MAX, "%s", name);
    else {
        char start[PATH_MAX];
        if (folder == AT_FDCWD) { if (!getcwd(start, sizeof start)) return 0; }
        else { path_of(folder, start); }
        if (snprintf(path, PATH_MAX, "%s/%s", start, name) >= PATH_MAX) return 0;
    }
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') path[--end] = 0;
    return is_ours(path);
}

static uint64_t inode_of(const char *path) {
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

/* Whether this place is the one to fail; then it is written down, and errno is set. */
static int fails(int kind, uint64_t inode, const char *path) {
    if (places++ != fail_at) return 0;
    put_record(kind, 1, inode, 0, "", 0, path, "");
    errno = error_to_give;
    return 1;
}

/* In a wrapper of CALL: what is not ours goes on unseen; what is, is refused, or made and written down by `body`. */
#define BEGIN if (diary < 0) return CALL; char path[PATH_MAX] = "", other[PATH_MAX] = ""; (void)other;
#define LOCK pthread_mutex_lock(&turn)
#define UNLOCK do { int kept = errno; pthread_mutex_unlock(&turn); errno = kept; } while (0)
#define TRY(kind, inode, body) \
    LOCK; \
    __typeof__(CALL) result = -1; \
    if (!fails(kind, inode, path)) { result = CALL; if (result >= 0) { int kept = errno; body; errno = kept; } } \
    UNLOCK; \
    return result;

static int opened(const char *name, int folder, int flags, mode_t mode, const char *which) {
    int (*open_at)(int, const char *, int, ...) = (__typeof__(open_at))real(which);
#define CALL open_at(folder, name, flags, mode)
    BEGIN
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !place_of(folder, name, path)) return CALL;
    struct stat before;
    int there = !stat(path, &before);
    if (there && (!(flags & O_TRUNC) || (flags & O_EXCL))) return CALL;
    TRY(there ? TRUNCATE : CREATE, there ? before.st_ino : 0,
        put_record(there ? TRUNCATE : CREATE, 0, inode_of(path), 0, "", 0, path, ""))
#undef CALL
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *name, int flags, ...) { MODE return opened(name, AT_FDCWD, flags, mode, "openat"); }
int open64(const char *name, int flags, ...) { MODE return opened(name, AT_FDCWD, flags, mode, "openat64"); }
int openat(int folder, const char *name, int flags, ...) { MODE return opened(name, folder, flags, mode, "openat"); }
int openat64(int folder, const char *name, int flags, ...) { MODE return opened(name, folder, flags, mode, "openat64"); }

static uint64_t inode_at(int handle) {
    struct stat found;
    return fstat(handle, &found) ? 0 : found.st_ino;
}

ssize_t write(int handle, const void *data, size_t size) {
#define CALL REAL(write)(handle, data, size)
    BEGIN
    if (!path_of(handle, path)) return CALL;
    uint64_t inode = inode_at(handle);
    TRY(WRITE, inode, put_record(WRITE, 0, inode, lseek(handle, 0, SEEK_CUR) - result, data, (size_t)result, path, ""))
#undef CALL
}

#define PWRITE(name) \
    ssize_t name(int handle, const void *data, size_t size, off_t at) { \
        BEGIN \
        if (!path_of(handle, path)) return CALL; \
        uint64_t inode = inode_at(handle); \
        TRY(WRITE, inode, put_record(WRITE, 0, inode, at, data, (size_t)result, path, "")) \
    }
#define CALL REAL(pwrite)(handle, data, size, at)
PWRITE(pwrite)
PWRITE(pwrite64)
#undef CALL

ssize_t writev(int handle, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (diary < 0 || !path_of(handle, path)) return REAL(writev)(handle, parts, count);
    ssize_t whole = 0;
    for (int part = 0; part < count; part++) {
        ssize_t done = write(handle, parts[part].iov_base, parts[part].iov_len);
        if (done < 0) return whole ? whole : -1;
        whole += done;
        if ((size_t)done < parts[part].iov_len) break;
    }
    return whole;
}

#define SIZED(name) \
    int name(int handle, off_t size) { \
        BEGIN \
        if (!path_of(handle, path)) return CALL; \
        uint64_t inode = inode_at(handle); \
        TRY(TRUNCATE, inode, put_record(TRUNCATE, 0, inode, size, "", 0, path, "")) \
    }
#define CALL REAL(ftruncate)(handle, size)
SIZED(ftruncate)
SIZED(ftruncate64)
#undef CALL

/* Says its error by its answer, not by errno. */
static int reserved(int handle, off_t at, off_t size) {
    char path[PATH_MAX];
    if (diary < 0 || !path_of(handle, path)) return REAL(posix_fallocate)(handle, at, size);
    struct stat found;
    LOCK;
    int failed = fstat(handle, &found) || fails(TRUNCATE, found.st_ino, path) ? errno : REAL(posix_fallocate)(handle, at, size);
    if (!failed && at + size > found.st_size) put_record(TRUNCATE, 0, found.st_ino, at + size, "", 0, path, "");
    UNLOCK;
    return failed;
}
int posix_fallocate(int handle, off_t at, off_t size) { return reserved(handle, at, size); }
int posix_fallocate64(int handle, off_t at, off_t size) { return reserved(handle, at, size); }

/* What was written into a map, as one write of all that is mapped. */
static void put_map(const struct map *map) {
    char path[PATH_MAX];
    if (path_of(map->handle, path)) put_record(WRITE, 0, inode_at(map->handle), 0, map->at, map->length, path, "");
}
static void put_maps_of(uint64_t inode) {
    for (size_t k = 0; k < sizeof maps / sizeof *maps; k++)
        if (maps[k].at && inode_at(maps[k].handle) == inode) put_map(maps + k);
}

#define FLUSHES(name) \
    int name(int handle) { \
        BEGIN \
        if (!path_of(handle, path)) return CALL; \
        uint64_t inode = inode_at(handle); \
        TRY(FLUSH, inode, put_maps_of(inode); put_record(FLUSH, 0, inode, 0, "", 0, path, "")) \
    }
#define CALL REAL(fsync)(handle)
FLUSHES(fsync)
#undef CALL
#define CALL REAL(fdatasync)(handle)
FLUSHES(fdatasync)
#undef CALL

static void *mapped(void *at, size_t length, int protection, int flags, int handle, off_t offset) {
    void *found = REAL(mmap)(at, length, protection, flags, handle, offset);
    char path[PATH_MAX];
    if (diary < 0 || found == MAP_FAILED || handle < 0 || !(flags & MAP_SHARED) || !(protection & PROT_WRITE)) return found;
    /* SQLite's -shm is made anew from the log whenever nobody has it open. */
    if (!path_of(handle, path) || offset || strstr(path, "-shm")) return found;
    LOCK;
    for (size_t k = 0; k < sizeof maps / sizeof *maps; k++)
        if (!maps[k].at) { maps[k] = (struct map){found, length, dup(handle)}; break; }
    UNLOCK;
    return found;
}
void *mmap(void *at, size_t length, int protection, int flags, int handle, off_t offset) { return mapped(at, length, protection, flags, handle, offset); }
void *mmap64(void *at, size_t length, int protection, int flags, int handle, off_t offset) { return mapped(at, length, protection, flags, handle, offset); }

int msync(void *at, size_t length, int flags) {
#define CALL REAL(msync)(at, length, flags)
    BEGIN
    for (size_t k = 0; k < sizeof maps / sizeof *maps; k++)
        if (maps[k].at == at && at && path_of(maps[k].handle, path)) {
            uint64_t inode = inode_at(maps[k].handle);
            TRY(FLUSH, inode, put_map(maps + k); put_record(FLUSH, 0, inode, 0, "", 0, path, ""))
        }
    return CALL;
#undef CALL
}

int munmap(void *at, size_t length) {
    if (diary >= 0)
        for (size_t k = 0; k < sizeof maps / sizeof *maps; k++)
            if (maps[k].at == at && at) { LOCK; put_map(maps + k); close(maps[k].handle); maps[k].at = NULL; UNLOCK; }
    return REAL(munmap)(at, length);
}

static int renamed(int from, const char *name, int to, const char *new, unsigned flags, int linked) {
#define CALL (linked ? REAL(linkat)(from, name, to, new, (int)flags) : REAL(renameat2)(from, name, to, new, flags))
    BEGIN
    int ours = place_of(from, name, path);
    if (!place_of(to, new, other) && !ours) return CALL;
    uint64_t inode = inode_of(path);
    if (!inode) return CALL;
    TRY(linked ? LINK : RENAME, inode, put_record(linked ? LINK : RENAME, 0, inode, 0, "", 0, path, other))
#undef CALL
}
int rename(const char *name, const char *new) { return renamed(AT_FDCWD, name, AT_FDCWD, new, 0, 0); }
int renameat(int from, const char *name, int to, const char *new) { return renamed(from, name, to, new, 0, 0); }
int renameat2(int from, const char *name, int to, const char *new, unsigned flags) { return renamed(from, name, to, new, flags, 0); }
int link(const char *name, const char *new) { return renamed(AT_FDCWD, name, AT_FDCWD, new, 0, 1); }
int linkat(int from, const char *name, int to, const char *new, int flags) { return renamed(from, name, to, new, (unsigned)flags, 1); }

static int removed(int folder, const char *name, int flags) {
#define CALL REAL(unlinkat)(folder, name, flags)
    BEGIN
    struct stat found;
    if (!place_of(folder, name, path) || lstat(path, &found)) return CALL;
    int kind = flags & AT_REMOVEDIR ? REMOVE_FOLDER : REMOVE;
    TRY(kind, found.st_ino, put_record(kind, 0, found.st_ino, 0, "", 0, path, ""))
#undef CALL
}
int unlink(const char *name) { return removed(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return removed(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int folder, const char *name, int flags) { return removed(folder, name, flags); }

static int made(int folder, const char *name, mode_t mode) {
#define CALL REAL(mkdirat)(folder, name, mode)
    BEGIN
    if (!place_of(folder, name, path) || inode_of(path)) return CALL;
    TRY(FOLDER, 0, put_record(FOLDER, 0, inode_of(path), 0, "", 0, path, ""))
#undef CALL
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int folder, const char *name, mode_t mode) { return made(folder, name, mode); }
