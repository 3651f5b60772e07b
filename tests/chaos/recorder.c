/* Records what a process and its children do to the files below a folder: an LD_PRELOAD library for Linux.

   RECORDED_ROOT is the folder, RECORDED_TO the file to which each call is appended, in the form that `syncs.py` reads.
   A call is recorded after it has returned, and before its caller goes on: what is recorded up to a moment has happened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

struct head { int64_t at, offset; uint32_t path, other, data; char op; } __attribute__((packed));

static const char *root;
static size_t root_length;
static int out = -1;
static ssize_t (*written)(int, const struct iovec *, int);

__attribute__((constructor)) static void begin(void) {
    const char *to = getenv("RECORDED_TO");
    root = getenv("RECORDED_ROOT");
    written = dlsym(RTLD_NEXT, "writev");
    if (!root || !to) return;
    root_length = strlen(root);
    int (*opened)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int low = opened(to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    out = fcntl(low, F_DUPFD_CLOEXEC, 900); /* not one of the first, which programs close */
    close(low);
}

static int below(const char *path) {
    return out >= 0 && !strncmp(path, root, root_length) && (!path[root_length] || path[root_length] == '/');
}

static int of_descriptor(int fd, char *path) {
    char link[64];
    if (out < 0 || fd < 0 || fd == out) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path) && !(length > 10 && !strcmp(path + length - 10, " (deleted)"));
}

static int of_path(int folder, const char *given, char *path) {
    if (out < 0 || !given) return 0;
    if (given[0] == '/') snprintf(path, PATH_MAX, "%s", given);
    else {
        char place[PATH_MAX];
        if (folder == AT_FDCWD ? !getcwd(place, sizeof place) : !of_descriptor(folder, place)) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", place, given) >= PATH_MAX) return 0;
    }
    return below(path);
}

static int64_t record(char op, const char *path, const char *other, int64_t offset, const void *data, size_t length) {
    int before = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct head head = {now.tv_sec * 1000000000LL + now.tv_nsec, offset, strlen(path), strlen(other), length, op};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path}, {(void *)other, head.other},
                            {(void *)data, length}};
    if (written(out, parts, 4) < 0) abort();
    errno = before;
    return head.at;
}

static void opened(int fd, int flags) {
    char path[PATH_MAX];
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && of_descriptor(fd, path))
        record(flags & O_TRUNC ? 'T' : 'C', path, "", 0, "", 0);
}

static void wrote(int fd, const void *data, ssize_t length, int64_t offset) {
    char path[PATH_MAX];
    int before = errno;
    if (length > 0 && of_descriptor(fd, path))
        record('W', path, "", offset >= 0 ? offset : lseek(fd, 0, SEEK_CUR) - length, data, length);
    errno = before;
}

static void named(char op, int a, const char *from, int b, const char *to) {
    char path[PATH_MAX], other[PATH_MAX];
    int one = of_path(a, from, path), two = to ? of_path(b, to, other) : 0;
    if (one || two) record(one && (two || !to) ? op : 'X', path, to ? other : "", 0, "", 0);
}

/* What is done while a sync is under way is not counted as synced: its beginning is recorded as well. */
static int synced(int (*real)(int), int fd) {
    char path[PATH_MAX];
    int known = of_descriptor(fd, path);
    int64_t began = known ? record('s', path, "", 0, "", 0) : 0;
    int result = real(fd);
    if (!result && known) record('S', path, "", began, "", 0);
    return result;
}

#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    REAL(name); int fd = real(path, flags, mode); opened(fd, flags); return fd; }
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    REAL(name); int fd = real(folder, path, flags, mode); opened(fd, flags); return fd; }
#define CREAT(name) int name(const char *path, mode_t mode) { \
    REAL(name); int fd = real(path, mode); opened(fd, O_CREAT | O_TRUNC); return fd; }
#define PWRITE(name, off) ssize_t name(int fd, const void *data, size_t length, off offset) { \
    REAL(name); ssize_t done = real(fd, data, length, offset); wrote(fd, data, done, offset); return done; }
#define TRUNCATE(name, off) int name(int fd, off length) { \
    char path[PATH_MAX]; REAL(name); int done = real(fd, length); \
    if (!done && of_descriptor(fd, path)) record('T', path, "", length, "", 0); \
    return done; }
/* Ways to change files that no model follows: the replay refuses them by name. */
#define UNKNOWN(name, fd, type, arguments, passed) type name arguments { \
    char path[PATH_MAX]; REAL(name); if (of_descriptor(fd, path)) record('X', path, #name, 0, "", 0); \
    return real passed; }

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) CREAT(creat) CREAT(creat64)
PWRITE(pwrite, off_t) PWRITE(pwrite64, off64_t) TRUNCATE(ftruncate, off_t) TRUNCATE(ftruncate64, off64_t)
UNKNOWN(sendfile, to, ssize_t, (int to, int from, off_t *at, size_t count), (to, from, at, count))
UNKNOWN(sendfile64, to, ssize_t, (int to, int from, off64_t *at, size_t count), (to, from, at, count))
UNKNOWN(copy_file_range, to, ssize_t, (int from, off64_t *a, int to, off64_t *b, size_t count, unsigned flags),
        (from, a, to, b, count, flags))
UNKNOWN(pwritev, fd, ssize_t, (int fd, const struct iovec *parts, int count, off_t offset), (fd, parts, count, offset))
UNKNOWN(pwritev64, fd, ssize_t, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))

ssize_t write(int fd, const void *data, size_t length) {
    REAL(write); ssize_t done = real(fd, data, length); wrote(fd, data, done, -1); return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    char path[PATH_MAX];
    ssize_t done = real(fd, parts, count), left = done;
    if (done <= 0 || !of_descriptor(fd, path)) return done;
    int64_t at = lseek(fd, 0, SEEK_CUR) - done;
    for (int part = 0; left > 0; part++) {
        ssize_t length = left < (ssize_t)parts[part].iov_len ? left : (ssize_t)parts[part].iov_len;
        wrote(fd, parts[part].iov_base, length, at);
        at += length; left -= length;
    }
    return done;
}

void *mmap(void *place, size_t length, int access, int flags, int fd, off_t offset) {
    char path[PATH_MAX];
    REAL(mmap);
    if ((flags & MAP_SHARED) && (access & PROT_WRITE) && of_descriptor(fd, path)) record('X', path, "mmap", 0, "", 0);
    return real(place, length, access, flags, fd, offset);
}

int syncfs(int fd) { /* of all that is on its file system, not of one file */
    REAL(syncfs);
    int64_t began = out >= 0 ? record('f', root, "", 0, "", 0) : 0;
    int result = real(fd);
    if (!result && out >= 0) record('S', root, "", began, "", 0);
    return result;
}

int fsync(int fd) { REAL(fsync); return synced(real, fd); }
int fdatasync(int fd) { REAL(fdatasync); return synced(real, fd); }

#define NAMED(op, a, from, b, to, call) int done = call; if (!done) named(op, a, from, b, to); return done;
int rename(const char *a, const char *b) { REAL(rename); NAMED('R', AT_FDCWD, a, AT_FDCWD, b, real(a, b)) }
int renameat(int x, const char *a, int y, const char *b) { REAL(renameat); NAMED('R', x, a, y, b, real(x, a, y, b)) }
int renameat2(int x, const char *a, int y, const char *b, unsigned flags) {
    REAL(renameat2); NAMED('R', x, a, y, b, real(x, a, y, b, flags))
}
int link(const char *a, const char *b) { REAL(link); NAMED('L', AT_FDCWD, a, AT_FDCWD, b, real(a, b)) }
int linkat(int x, const char *a, int y, const char *b, int flags) {
    REAL(linkat); NAMED('L', x, a, y, b, real(x, a, y, b, flags))
}
int unlink(const char *a) { REAL(unlink); NAMED('U', AT_FDCWD, a, 0, NULL, real(a)) }
int unlinkat(int x, const char *a, int flags) { REAL(unlinkat); NAMED('U', x, a, 0, NULL, real(x, a, flags)) }
int remove(const char *a) { REAL(remove); NAMED('U', AT_FDCWD, a, 0, NULL, real(a)) }
int rmdir(const char *a) { REAL(rmdir); NAMED('U', AT_FDCWD, a, 0, NULL, real(a)) }
int mkdir(const char *a, mode_t mode) { REAL(mkdir); NAMED('M', AT_FDCWD, a, 0, NULL, real(a, mode)) }
int mkdirat(int x, const char *a, mode_t mode) { REAL(mkdirat); NAMED('M', x, a, 0, NULL, real(x, a, mode)) }
int symlink(const char *a, const char *b) { REAL(symlink); NAMED('X', AT_FDCWD, b, 0, NULL, real(a, b)) }
