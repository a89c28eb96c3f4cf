/* Preloaded into node plugins by the campaign: disks that fail, a death after the n-th change of a file, clock jumps.
 *
 * CAMPAIGN_SHIM names a file of four 64-bit numbers that the campaign changes while the plugin runs: an errno for each
 * of the folders CAMPAIGN_CDI and CAMPAIGN_STATE (0: the disk works), how many more changes of files there the process
 * survives (0: any number), and what is added to the wall clock in seconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *control;
static const char *folders[2];

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("CAMPAIGN_SHIM");
  folders[0] = getenv("CAMPAIGN_CDI");
  folders[1] = getenv("CAMPAIGN_STATE");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *mapped = mmap(NULL, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) control = mapped;
}

static int folder_of(const char *path) {
  for (int i = 0; control && path && i < 2; i++) {
    size_t length = folders[i] ? strlen(folders[i]) : 0;
    if (length && !strncmp(path, folders[i], length) && (path[length] == '/' || !path[length])) return i;
  }
  return -1;
}

static int folder_of_fd(int fd) {
  char link[64], path[PATH_MAX];
  if (!control) return -1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return -1;
  path[length] = 0;
  return folder_of(path);
}

/* Whether the disk refuses: a full one lets files be removed, moved and made empty. */
static int refuses(int folder, int writes) {
  if (folder < 0 || !control[folder] || (control[folder] == ENOSPC && !writes)) return 0;
  errno = (int)control[folder];
  return 1;
}

static void changed(int folder) {
  if (folder >= 0 && control[2] > 0 && __sync_sub_and_fetch(&control[2], 1) == 0) kill(getpid(), SIGKILL);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define CHANGE(folder, writes, call)            \
  int where = folder;                           \
  if (refuses(where, writes)) return -1;        \
  int result = call;                            \
  if (result >= 0) changed(where);              \
  return result;

int rename(const char *from, const char *to) { CHANGE(folder_of(to), 0, NEXT(rename)(from, to)) }
int unlink(const char *path) { CHANGE(folder_of(path), 0, NEXT(unlink)(path)) }
int link(const char *from, const char *to) { CHANGE(folder_of(to), 0, NEXT(link)(from, to)) }
int mkdir(const char *path, mode_t mode) { CHANGE(folder_of(path), 1, NEXT(mkdir)(path, mode)) }
int ftruncate64(int fd, off64_t size) { CHANGE(folder_of_fd(fd), 0, NEXT(ftruncate64)(fd, size)) }
int fsync(int fd) { return refuses(folder_of_fd(fd), 1) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return refuses(folder_of_fd(fd), 1) ? -1 : NEXT(fdatasync)(fd); }

ssize_t write(int fd, const void *bytes, size_t size) {
  int where = folder_of_fd(fd);
  if (refuses(where, 1)) {
    if (errno != ENOSPC || size < 2) return -1;
    size /= 2; /* the last free bytes of the disk */
  }
  ssize_t result = NEXT(write)(fd, bytes, size);
  if (result >= 0) changed(where);
  return result;
}

int open64(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (flags & (O_CREAT | O_WRONLY | O_RDWR) && refuses(folder_of(path), 0)) return -1;
  return NEXT(open64)(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = NEXT(clock_gettime)(clock, now);
  if (!result && control && clock == CLOCK_REALTIME) now->tv_sec += control[3];
  return result;
}

time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
