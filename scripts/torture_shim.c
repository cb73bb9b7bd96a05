/* Makes the n-th operation on the files of one folder fail, stop halfway, or be the last one before SIGKILL.
 *
 * Loaded by LD_PRELOAD into scripts/torture.py, it does nothing until torture_arm() is called. From then on every
 * operation that matches is counted over all processes forked since, and written to a log: pid, operation, path, and
 * the other path or the size. A power cut is simulated from the log, which tells what was never synced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* the same order as OPERATIONS in torture_process.py */
enum { CREATE, OPEN, READ, WRITE, SYNC, RENAME, UNLINK, TRUNCATE, MKDIR, MAP, LINK, LOCK, FORK };
static const char *const NAMES[] = {"create", "open",     "read",  "write", "sync", "rename", "unlink",
                                    "truncate", "mkdir", "map",  "link",   "lock", "fork"};
/* the same order as ACTIONS there */
enum { WATCH, FAIL, KILL_BEFORE, KILL_AFTER, SHORT, HALF_FAIL, HALF_KILL, CUT };

static char prefix[PATH_MAX], kept[PATH_MAX];
static int armed, only_workers, operations, action, error_number, lasting, log_file;
static long due;
static pid_t main_process;
static atomic_long *count;

int torture_arm(const char *where, int workers, int ops, int what, int error, long nth, int on, const char *log,
                const char *side) {
    snprintf(prefix, sizeof prefix, "%s", where);
    snprintf(kept, sizeof kept, "%s", side);
    only_workers = workers, operations = ops, action = what, error_number = error, due = nth, lasting = on;
    main_process = getpid();
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    armed = count != MAP_FAILED && log_file >= 0;
    return armed;
}

static void say(const char *mark, int op, const char *path, const char *more) {
    char line[3 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s%d\t%s\t%s\t%s\n", mark, (int)getpid(), NAMES[op], path, more);
    syscall(SYS_write, log_file, line, (size_t)length);
}

static const char *at(int folder, const char *path, char *room) {
    char link[64];
    ssize_t length;
    if (path != NULL && (folder == AT_FDCWD || path[0] == '/')) return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    length = syscall(SYS_readlinkat, AT_FDCWD, link, room, (size_t)PATH_MAX - 1);
    room[length < 0 ? 0 : length] = 0;
    if (path != NULL) {
        size_t used = strlen(room);
        snprintf(room + used, PATH_MAX - used, "/%s", path);
    }
    return room;
}

/* What to do at this operation: WATCH lets it pass. */
static int turn(int op, const char *path, const char *more) {
    long number;
    int strikes;
    if (!(operations >> op & 1) || strncmp(path, prefix, strlen(prefix)) != 0) return WATCH;
    if (only_workers && getpid() == main_process) return WATCH;
    number = atomic_fetch_add(count, 1) + 1;
    strikes = action != WATCH && (number == due || (lasting && number > due));
    say(strikes ? "!" : "", op, path, more);
    if (!strikes) return WATCH;
    if (action == KILL_BEFORE) kill(getpid(), SIGKILL);
    return action;
}

static void after(int what) {
    if (what == KILL_AFTER || what == HALF_KILL) kill(getpid(), SIGKILL);
    if (what == CUT) kill(0, SIGKILL);
}

/* An operation of which half a thing is nothing: it fails, or happens and may be the last. */
#define WHOLE(type, op, path, more, call)                                     \
    do {                                                                      \
        int what = turn(op, path, more);                                      \
        if (what == FAIL || what == HALF_FAIL) { errno = error_number; return (type)-1; } \
        type given = call;                                                    \
        int error = errno;                                                    \
        after(what);                                                          \
        errno = error;                                                        \
        return given;                                                         \
    } while (0)

#define NEXT(name)                                                            \
    (*({                                                                      \
        static __typeof__(&name) found;                                       \
        if (found == NULL) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        found;                                                                \
    }))

#define OPENS(name)                                                           \
    int name(const char *path, int flags, ...) {                              \
        va_list rest;                                                         \
        va_start(rest, flags);                                                \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                         \
        if (!armed) return NEXT(name)(path, flags, mode);                     \
        WHOLE(int, flags & O_CREAT ? CREATE : OPEN, path, "", NEXT(name)(path, flags, mode)); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                        \
    int name(int folder, const char *path, int flags, ...) {                  \
        char room[PATH_MAX];                                                  \
        va_list rest;                                                         \
        va_start(rest, flags);                                                \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                         \
        if (!armed) return NEXT(name)(folder, path, flags, mode);             \
        int op = flags & O_CREAT ? CREATE : OPEN;                             \
        WHOLE(int, op, at(folder, path, room), "", NEXT(name)(folder, path, flags, mode)); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t read(int file, void *data, size_t size) {
    char room[PATH_MAX];
    if (!armed) return NEXT(read)(file, data, size);
    WHOLE(ssize_t, READ, at(file, NULL, room), "", NEXT(read)(file, data, size));
}

static ssize_t written(int file, size_t size, ssize_t (*put)(size_t, void *), void *with) {
    char room[PATH_MAX];
    int what = turn(WRITE, at(file, NULL, room), "");
    ssize_t given;
    if (what == FAIL || (what == HALF_FAIL && size < 2)) { errno = error_number; return -1; }
    if ((what == SHORT || what == HALF_KILL || what == HALF_FAIL) && size > 1) size /= 2;
    given = put(size, with);
    /* a disk that gets full takes a part of one write, and nothing of those that follow */
    if (what == HALF_FAIL) action = FAIL, lasting = 1;
    int error = errno;
    after(what);
    errno = error;
    return given;
}

struct plain { int file; const void *data; off_t offset; };
static ssize_t put_write(size_t size, void *with) {
    struct plain *p = with;
    return NEXT(write)(p->file, p->data, size);
}
ssize_t write(int file, const void *data, size_t size) {
    struct plain p = {file, data, 0};
    return armed ? written(file, size, put_write, &p) : NEXT(write)(file, data, size);
}

static ssize_t put_pwrite(size_t size, void *with) {
    struct plain *p = with;
    return NEXT(pwrite64)(p->file, p->data, size, p->offset);
}
ssize_t pwrite64(int file, const void *data, size_t size, off_t offset) {
    struct plain p = {file, data, offset};
    return armed ? written(file, size, put_pwrite, &p) : NEXT(pwrite64)(file, data, size, offset);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return pwrite64(file, data, size, offset); }

static ssize_t put_writev(size_t pieces, void *with) {
    struct plain *p = with;
    return NEXT(writev)(p->file, p->data, (int)pieces);
}
ssize_t writev(int file, const struct iovec *pieces, int number) {
    struct plain p = {file, pieces, 0};
    return armed ? written(file, (size_t)number, put_writev, &p) : NEXT(writev)(file, pieces, number);
}

#define SYNCS(name)                                                           \
    int name(int file) {                                                      \
        char room[PATH_MAX], size[32];                                        \
        struct stat seen;                                                     \
        if (!armed) return NEXT(name)(file);                                  \
        snprintf(size, sizeof size, "%lld", fstat(file, &seen) ? -1LL : (long long)seen.st_size); \
        WHOLE(int, SYNC, at(file, NULL, room), size, NEXT(name)(file));       \
    }
SYNCS(fsync)
SYNCS(fdatasync)

/* A power cut brings back what a rename replaced: it is linked aside, by the number of the rename. */
static void keep(const char *path) {
    static int number;
    char beside[PATH_MAX + 16];
    if (action != CUT || strncmp(path, prefix, strlen(prefix)) != 0) return;
    snprintf(beside, sizeof beside, "%s/%d", kept, number++);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, beside, 0);
}

int rename(const char *from, const char *to) {
    if (!armed) return NEXT(rename)(from, to);
    keep(to);
    WHOLE(int, RENAME, from, to, NEXT(rename)(from, to));
}
int renameat(int there, const char *from, int here, const char *to) {
    char one[PATH_MAX], other[PATH_MAX];
    if (!armed) return NEXT(renameat)(there, from, here, to);
    keep(at(here, to, other));
    WHOLE(int, RENAME, at(there, from, one), at(here, to, other), NEXT(renameat)(there, from, here, to));
}

#define ON_PATH(name, op)                                                     \
    int name(const char *path) {                                              \
        if (!armed) return NEXT(name)(path);                                  \
        WHOLE(int, op, path, "", NEXT(name)(path));                           \
    }
ON_PATH(unlink, UNLINK)
ON_PATH(rmdir, UNLINK)

int unlinkat(int folder, const char *path, int flags) {
    char room[PATH_MAX];
    if (!armed) return NEXT(unlinkat)(folder, path, flags);
    WHOLE(int, UNLINK, at(folder, path, room), "", NEXT(unlinkat)(folder, path, flags));
}

int mkdir(const char *path, mode_t mode) {
    if (!armed) return NEXT(mkdir)(path, mode);
    WHOLE(int, MKDIR, path, "", NEXT(mkdir)(path, mode));
}

int link(const char *from, const char *to) {
    if (!armed) return NEXT(link)(from, to);
    WHOLE(int, LINK, from, to, NEXT(link)(from, to));
}

#define TRUNCATES(name, type)                                                 \
    int name(int file, type size) {                                           \
        char room[PATH_MAX];                                                  \
        if (!armed) return NEXT(name)(file, size);                            \
        WHOLE(int, TRUNCATE, at(file, NULL, room), "", NEXT(name)(file, size)); \
    }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

#define MAPS(name, type)                                                      \
    void *name(void *where, size_t size, int protection, int flags, int file, type offset) { \
        char room[PATH_MAX];                                                  \
        if (!armed || file < 0) return NEXT(name)(where, size, protection, flags, file, offset); \
        WHOLE(void *, MAP, at(file, NULL, room), "", NEXT(name)(where, size, protection, flags, file, offset)); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

int flock(int file, int how) {
    char room[PATH_MAX];
    if (!armed) return NEXT(flock)(file, how);
    WHOLE(int, LOCK, at(file, NULL, room), "", NEXT(flock)(file, how));
}

pid_t fork(void) {
    if (!armed) return NEXT(fork)();
    int what = turn(FORK, prefix, ""); /* processes have no path: they match whatever is watched */
    if (what == FAIL) { errno = error_number; return -1; }
    return NEXT(fork)();
}
