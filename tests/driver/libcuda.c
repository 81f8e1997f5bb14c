// A stub of the driver for tests/old_driver.rs: it answers for the release RELEASE and has
// functions that drivers had in CUDA 12.0, none that came later. Each call is a line in the file
// that STUB_LOG names. For tests/uploads.rs it copies as late as a driver may: when it is asked for
// the second time whether the event behind a copy has happened, or is told to wait. Memory that is
// written to before that is seen to be wrong.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void called(const char* name) {
  const char* path = getenv("STUB_LOG");
  FILE* log = path ? fopen(path, "a") : NULL;
  if (log == NULL) return;
  fprintf(log, "%s\n", name);
  fclose(log);
}

static char handle[64];

#define CALLED called(__func__)

struct copy {
  void* to;
  const void* from;
  size_t bytes;
  void* stream;
};

struct event {
  size_t behind;  // so many copies
  void* stream;
  int asked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct copy* copies;
static size_t count, room;

static void add_copy(void* to, const void* from, size_t bytes, void* stream) {
  pthread_mutex_lock(&lock);
  if (count == room) copies = realloc(copies, (room = 2 * room + 64) * sizeof *copies);
  copies[count++] = (struct copy){to, from, bytes, stream};
  pthread_mutex_unlock(&lock);
}

// Makes the copies of a stream among the first `behind`.
static void make_copies(void* stream, size_t behind) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < behind && i < count; ++i) {
    if (copies[i].stream != stream) continue;
    memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    copies[i].stream = NULL;
  }
  pthread_mutex_unlock(&lock);
}

int cuDriverGetVersion(int* version) {
  CALLED;
  *version = RELEASE;
  return 0;
}
int cuInit(unsigned flags) {
  CALLED;
  return 0;
}
int cuGetErrorName(int error, const char** text) {
  CALLED;
  *text = "STUB";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  CALLED;
  *text = "an error of the stub";
  return 0;
}
int cuDeviceGetCount(int* count) {
  CALLED;
  *count = 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  CALLED;
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int which, int device) {
  CALLED;
  // The compute capability, and plenty of everything else.
  *value = which == 75 ? CAPABILITY / 10 : which == 76 ? CAPABILITY % 10 : 64;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  CALLED;
  *context = handle;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  CALLED;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  CALLED;
  *context = NULL;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  CALLED;
  return 0;
}
int cuCtxSynchronize(void) {
  CALLED;
  return 0;
}
int cuMemGetInfo_v2(size_t* left, size_t* all) {
  CALLED;
  *left = 3ul << 30;
  *all = 4ul << 30;
  return 0;
}
int cuMemAlloc_v2(unsigned long* address, size_t bytes) {
  CALLED;
  *address = (unsigned long)calloc(1, bytes);
  return 0;
}
int cuMemFree_v2(unsigned long address) {
  CALLED;
  free((void*)address);
  return 0;
}
int cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  CALLED;
  *address = calloc(1, bytes);
  return 0;
}
int cuMemFreeHost(void* address) {
  CALLED;
  free(address);
  return 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long to, const void* from, size_t bytes, void* stream) {
  CALLED;
  add_copy((void*)to, from, bytes, stream);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long from, size_t bytes, void* stream) {
  CALLED;
  add_copy(to, (const void*)from, bytes, stream);
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
  CALLED;
  *stream = malloc(1);
  return 0;
}
int cuStreamDestroy_v2(void* stream) {
  CALLED;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  CALLED;
  make_copies(stream, count);
  return 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  CALLED;
  return 0;
}
int cuEventCreate(void** event, unsigned flags) {
  CALLED;
  *event = calloc(1, sizeof(struct event));
  return 0;
}
int cuEventDestroy_v2(void* event) {
  CALLED;
  free(event);
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  CALLED;
  pthread_mutex_lock(&lock);
  *(struct event*)event = (struct event){count, stream, 0};
  pthread_mutex_unlock(&lock);
  return 0;
}
int cuEventQuery(void* event) {
  CALLED;
  struct event* asked = event;
  if (!asked->asked++) return 600;  // CUDA_ERROR_NOT_READY
  make_copies(asked->stream, asked->behind);
  return 0;
}
int cuEventSynchronize(void* event) {
  CALLED;
  make_copies(((struct event*)event)->stream, ((struct event*)event)->behind);
  return 0;
}
int cuModuleUnload(void* module) {
  CALLED;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  CALLED;
  *function = handle;
  return 0;
}
int cuFuncSetAttribute(void* function, int which, int value) {
  CALLED;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                size_t bytes) {
  CALLED;
  *blocks = 4;
  return 0;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** arguments, void** more) {
  CALLED;
  return 0;
}

// What is loaded: `sm_NN` for machine code of CUDA 12 (its architecture is in the flags of the ELF
// file), `ptx`, or `fatbin`.
int cuModuleLoadData(void** module, const unsigned char* image) {
  CALLED;
  *module = handle;
  char text[32] = "image unknown";
  unsigned flags, magic;
  memcpy(&magic, image, 4);
  memcpy(&flags, image + 48, 4);
  if (magic == 0xba55ed50)
    strcpy(text, "image fatbin");
  else if (magic == 0x464c457f)
    snprintf(text, sizeof text, "image sm_%u", flags & 255);
  else if (strstr((const char*)image, ".version") != NULL)
    strcpy(text, "image ptx");
  called(text);
  return 0;
}
