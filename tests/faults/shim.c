/* Fails, tears or ends the process at the n-th call that touches a file under one folder. Loaded with LD_PRELOAD.

   Counted are open, write, pwrite, fsync, fdatasync, ftruncate, fallocate, rename, link, unlink and mkdir, of Python and
   of SQLite alike. Nothing happens before shim_arm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { COUNT, FULL_ONCE, BROKEN_ONCE, TORN, KILLED, TORN_KILLED, FULL };

static char root[4096];
static size_t root_length;
static int mode = COUNT, armed = 0;
static long at = 0, calls = 0;
static char kind[32] = "", place[4096] = "";
static char seen[65536]; /* a letter for each call: o open, w write, f fsync …; a capital where it takes room */

void shim_arm(const char *folder, int how, long number) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    mode = how; at = number; calls = 0; kind[0] = place[0] = 0; armed = 1;
    memset(seen, 0, sizeof seen);
}
void shim_disarm(void) { armed = 0; }
long shim_calls(void) { return calls; }
const char *shim_seen(void) { return seen; }
const char *shim_kind(void) { return kind; }
const char *shim_place(void) { return place; }

static int under(const char *path) { return path && strncmp(path, root, root_length) == 0; }

static int hit(const char *what, const char *path, int takes_room) {
    if (!armed || !under(path)) return 0;
    long now = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (now < (long)sizeof seen) seen[now - 1] = takes_room ? what[0] - 32 : what[0];
    if (mode == COUNT || now < at) return 0;
    if (now > at && !(mode == FULL && takes_room)) return 0;
    if (mode == FULL && !takes_room) return 0;
    if (now == at || !kind[0]) {
        snprintf(kind, sizeof kind, "%s", what);
        snprintf(place, sizeof place, "%s", path);
    }
    if (mode == KILLED) kill(getpid(), SIGKILL);
    return 1;
}
static int hit_fd(const char *what, int fd, int takes_room) {
    char link[64], path[4096];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return hit(what, path, takes_room);
}
static int reason(void) { return mode == BROKEN_ONCE ? EIO : ENOSPC; }

#define REAL(name, type) static __typeof__(type) real; if (!real) real = (__typeof__(type))dlsym(RTLD_NEXT, name)
/* What is no write cannot be torn: it is done, and then the process ends, or it fails. */
#define FAIL(done) do { \
        if (mode == TORN_KILLED) { (void)!(done); kill(getpid(), SIGKILL); } \
        errno = reason(); return -1; } while (0)

#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    REAL(#name, int (*)(const char *, int, ...)); \
    mode_t bits = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); } \
    if (hit("open", path, flags & O_CREAT)) FAIL(real(path, flags, bits)); \
    return real(path, flags, bits); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
int name(int folder, const char *path, int flags, ...) { \
    REAL(#name, int (*)(int, const char *, int, ...)); \
    mode_t bits = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); } \
    if (hit("open", path, flags & O_CREAT)) FAIL(real(folder, path, flags, bits)); \
    return real(folder, path, flags, bits); }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL("write", ssize_t (*)(int, const void *, size_t));
    if (hit_fd("write", fd, 1)) {
        if (mode == TORN || mode == TORN_KILLED) {
            static int torn = 0;
            ssize_t half = real(fd, bytes, count / 2);
            if (mode == TORN_KILLED) kill(getpid(), SIGKILL);
            if (!torn++ && half > 0) { at = calls + 1; return half; } /* a short write, and then no room */
        }
        errno = reason();
        return -1;
    }
    return real(fd, bytes, count);
}
#define PWRITE(name, offset_type) \
ssize_t name(int fd, const void *bytes, size_t count, offset_type offset) { \
    REAL(#name, ssize_t (*)(int, const void *, size_t, offset_type)); \
    if (hit_fd("write", fd, 1)) { \
        if (mode == TORN || mode == TORN_KILLED) (void)!real(fd, bytes, count / 2, offset); \
        if (mode == TORN_KILLED) kill(getpid(), SIGKILL); \
        errno = reason(); \
        return -1; \
    } \
    return real(fd, bytes, count, offset); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define ONE(name, what, type, room) \
int name(type value) { \
    REAL(#name, int (*)(type)); \
    if (hit_fd(what, value, room)) FAIL(real(value)); \
    return real(value); }
ONE(fsync, "fsync", int, 0)
ONE(fdatasync, "fsync", int, 0)
#define TRUNCATE(name, offset_type) \
int name(int fd, offset_type length) { \
    REAL(#name, int (*)(int, offset_type)); \
    if (hit_fd("truncate", fd, 0)) FAIL(real(fd, length)); \
    return real(fd, length); }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)
#define ALLOCATE(name, offset_type) \
int name(int fd, offset_type offset, offset_type length) { \
    REAL(#name, int (*)(int, offset_type, offset_type)); \
    if (hit_fd("fallocate", fd, 1)) { \
        if (mode == TORN_KILLED) { (void)!real(fd, offset, length); kill(getpid(), SIGKILL); } \
        return reason(); \
    } \
    return real(fd, offset, length); }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

int rename(const char *old, const char *fresh) {
    REAL("rename", int (*)(const char *, const char *));
    if (hit("rename", fresh, 0)) FAIL(real(old, fresh));
    return real(old, fresh);
}
int renameat(int from, const char *old, int to, const char *fresh) {
    REAL("renameat", int (*)(int, const char *, int, const char *));
    if (hit("rename", fresh, 0)) FAIL(real(from, old, to, fresh));
    return real(from, old, to, fresh);
}
int link(const char *old, const char *fresh) {
    REAL("link", int (*)(const char *, const char *));
    if (hit("link", fresh, 1)) FAIL(real(old, fresh));
    return real(old, fresh);
}
int unlink(const char *path) {
    REAL("unlink", int (*)(const char *));
    if (hit("unlink", path, 0)) FAIL(real(path));
    return real(path);
}
int mkdir(const char *path, mode_t bits) {
    REAL("mkdir", int (*)(const char *, mode_t));
    if (hit("mkdir", path, 1)) FAIL(real(path, bits));
    return real(path, bits);
}
