// Preloaded into a process: at a chosen write, fsync, rename or unlink below a folder, or from then on, something happens.
// The environment is read anew at every call, so that it holds for a process that is forked, too.
//
// HOSTILE_FOLDER  the folder; calls on files elsewhere are passed on.
// HOSTILE_CALL    the number of the call, from 1; 0: none.
// HOSTILE_ERROR   0: the process group is killed, a write after half of its bytes; else the number of the error that this
//                 call and all later ones end with, as of a disk that is full.
// HOSTILE_COUNT   a file that gets a line with the number of calls when the process ends.
// HOSTILE_CLOCK   seconds by which the time of day is wrong, two seconds of every four.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static long number(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

// Processes of Python's own multiprocessing end without destructors, and call it.
__attribute__((destructor)) void tell_count(void) {
  const char *path = getenv("HOSTILE_COUNT");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%ld\n", (long)calls);
  fclose(file);
}

static int is_below(const char *path) {
  const char *folder = getenv("HOSTILE_FOLDER");
  return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_below(int file) {
  char link[64], path[PATH_MAX];
  if (!getenv("HOSTILE_FOLDER")) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}

// Whether it is this call's turn.
static int is_due(void) {
  long call = ++calls, chosen = number("HOSTILE_CALL");
  if (!chosen) return 0;
  return number("HOSTILE_ERROR") ? call >= chosen : call == chosen;
}

static int fail_or_die(void) {
  long error = number("HOSTILE_ERROR");
  if (!error) kill(0, SIGKILL), pause();
  errno = (int)error;
  return -1;
}

ssize_t write(int file, const void *bytes, size_t size) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  if (is_file_below(file) && is_due()) {
    if (!number("HOSTILE_ERROR")) (void)!real(file, bytes, size / 2);
    return fail_or_die();
  }
  return real(file, bytes, size);
}

int fsync(int file) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  return is_file_below(file) && is_due() ? fail_or_die() : real(file);
}

int rename(const char *from, const char *to) {
  static int (*real)(const char *, const char *);
  if (!real) real = dlsym(RTLD_NEXT, "rename");
  return is_below(to) && is_due() ? fail_or_die() : real(from, to);
}

// Taking a file away succeeds on a disk that is full.
int unlink(const char *path) {
  static int (*real)(const char *);
  if (!real) real = dlsym(RTLD_NEXT, "unlink");
  return is_below(path) && !number("HOSTILE_ERROR") && is_due() ? fail_or_die() : real(path);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME && now->tv_sec & 2) now->tv_sec += number("HOSTILE_CLOCK");
  return status;
}
