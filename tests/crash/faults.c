/* Faults in the system calls that make things durable: preloaded into a server under test.
 *
 * ASSAY_FAULT names a file. While it holds a line, calls are judged by it:
 *
 *     <action> <call> <part of the path> <number>
 *
 * `action`  trace       the call is written to <file>.trace, and done
 *           fail        not done, reported as failed (EIO)
 *           lie         done, and reported as failed (EIO)
 *           full        not done, reported as a full disk (ENOSPC), and so is every later one
 *           short       half of a write is done, and reported as half
 *           before      the process is killed before the call
 *           after       the process is killed when the call is done
 * `call`    write, sync, rename, truncate, unlink, or any
 * `number`  counts the calls that match, from 1; the fault is at that one, and <file>.hit says that it was.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum verdict { GO, FAIL, LIE, FULL, SHORT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char spec[512];
static int counted;

static void kill_now(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* The system call itself: nothing here may come back into what is interposed. */
static ssize_t raw_read(const char *path, char *into, size_t size) {
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    ssize_t got = syscall(SYS_read, fd, into, size);
    syscall(SYS_close, fd);
    return got;
}

static void trace(const char *file, const char *call, const char *path) {
    char name[600], line[800];
    snprintf(name, sizeof name, "%s.trace", file);
    int size = snprintf(line, sizeof line, "%s %s\n", call, path);
    long fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) kill_now();
    syscall(SYS_write, fd, line, (size_t)size);
    syscall(SYS_close, fd);
}

/* That the fault took place: a test waits for it. */
static void hit(const char *file) {
    char name[600];
    snprintf(name, sizeof name, "%s.hit", file);
    long fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) kill_now();
    syscall(SYS_close, fd);
}

static enum verdict judge(const char *call, const char *path, int *kill_after) {
    const char *file = getenv("ASSAY_FAULT");
    char now[512], action[16], wanted[16], part[256];
    int number;
    enum verdict verdict = GO;
    *kill_after = 0;
    if (file == NULL) return GO;
    int saved = errno;
    pthread_mutex_lock(&lock);
    ssize_t got = raw_read(file, now, sizeof now - 1);
    if (got > 0) {
        now[got] = 0;
        if (strcmp(now, spec) != 0) {
            strcpy(spec, now);
            counted = 0;
        }
        if (sscanf(now, "%15s %15s %255s %d", action, wanted, part, &number) == 4 &&
            (strcmp(wanted, "any") == 0 || strcmp(wanted, call) == 0) && strstr(path, part) != NULL) {
            counted++;
            if (strcmp(action, "trace") == 0) trace(file, call, path);
            else if (counted >= number) hit(file);
            if (strcmp(action, "trace") == 0) ;
            else if (strcmp(action, "full") == 0 && counted >= number) verdict = FULL;
            else if (counted == number) {
                if (strcmp(action, "before") == 0) kill_now();
                if (strcmp(action, "after") == 0) *kill_after = 1;
                if (strcmp(action, "fail") == 0) verdict = FAIL;
                if (strcmp(action, "lie") == 0) verdict = LIE;
                if (strcmp(action, "short") == 0) verdict = SHORT;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return verdict;
}

static enum verdict judge_fd(const char *call, int fd, int *kill_after) {
    char link[64], path[512];
    if (getenv("ASSAY_FAULT") == NULL) { *kill_after = 0; return GO; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int saved = errno;
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    path[size > 0 ? size : 0] = 0;
    return judge(call, path, kill_after);
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* What every call does with its verdict; `half` is what a short one does. */
#define AS_JUDGED(type, verdict, whole, half)                                   \
    do {                                                                        \
        if (verdict == FAIL) { errno = EIO; return -1; }                        \
        if (verdict == FULL) { errno = ENOSPC; return -1; }                     \
        type done = verdict == SHORT ? (half) : (whole);                        \
        if (kill_after) kill_now();                                             \
        if (verdict == LIE) { errno = EIO; return -1; }                         \
        return done;                                                            \
    } while (0)

#define HALF(n) ((n) > 1 ? (n) / 2 : (n))

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write); int kill_after; enum verdict v = judge_fd("write", fd, &kill_after);
    AS_JUDGED(ssize_t, v, real(fd, data, n), real(fd, data, HALF(n)));
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    REAL(pwrite); int kill_after; enum verdict v = judge_fd("write", fd, &kill_after);
    AS_JUDGED(ssize_t, v, real(fd, data, n, at), real(fd, data, HALF(n), at));
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    REAL(pwrite64); int kill_after; enum verdict v = judge_fd("write", fd, &kill_after);
    AS_JUDGED(ssize_t, v, real(fd, data, n, at), real(fd, data, HALF(n), at));
}
int fsync(int fd) {
    REAL(fsync); int kill_after; enum verdict v = judge_fd("sync", fd, &kill_after);
    AS_JUDGED(int, v, real(fd), real(fd));
}
int fdatasync(int fd) {
    REAL(fdatasync); int kill_after; enum verdict v = judge_fd("sync", fd, &kill_after);
    AS_JUDGED(int, v, real(fd), real(fd));
}
int ftruncate(int fd, off_t n) {
    REAL(ftruncate); int kill_after; enum verdict v = judge_fd("truncate", fd, &kill_after);
    AS_JUDGED(int, v, real(fd, n), real(fd, n));
}
int ftruncate64(int fd, off64_t n) {
    REAL(ftruncate64); int kill_after; enum verdict v = judge_fd("truncate", fd, &kill_after);
    AS_JUDGED(int, v, real(fd, n), real(fd, n));
}
int rename(const char *from, const char *to) {
    REAL(rename); int kill_after; enum verdict v = judge("rename", to, &kill_after);
    AS_JUDGED(int, v, real(from, to), real(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat); int kill_after; enum verdict v = judge("rename", to, &kill_after);
    AS_JUDGED(int, v, real(a, from, b, to), real(a, from, b, to));
}
int unlink(const char *path) {
    REAL(unlink); int kill_after; enum verdict v = judge("unlink", path, &kill_after);
    AS_JUDGED(int, v, real(path), real(path));
}
