// A stub of the driver for tests/old_driver.rs: it answers for the release RELEASE and has functions that drivers had in CUDA
// 12.0, none that came later. Each call is a line in the file that STUB_LOG names.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;

static void called(const char* name) {
  const char* path = getenv("STUB_LOG");
  FILE* log = path ? fopen(path, "a") : NULL;
  if (log == NULL) return;
  fprintf(log, "%s\n", name);
  fclose(log);
}

static char handle[64];

#define STUB(name, ...)       \
  Result name(__VA_ARGS__) {  \
    called(#name);
#define END \
  return 0; \
  }

STUB(cuDriverGetVersion, int* version) *version = RELEASE; END
STUB(cuInit, unsigned flags) END
STUB(cuGetErrorName, Result error, const char** text) *text = "STUB"; END
STUB(cuGetErrorString, Result error, const char** text) *text = "an error of the stub"; END
STUB(cuDeviceGetCount, int* count) *count = 1; END
STUB(cuDeviceGet, int* device, int ordinal) *device = ordinal; END
STUB(cuDeviceGetAttribute, int* value, int which, int device)
  // The compute capability, and plenty of everything else.
  *value = which == 75 ? CAPABILITY / 10 : which == 76 ? CAPABILITY % 10 : 64; END
STUB(cuDevicePrimaryCtxRetain, void** context, int device) *context = handle; END
STUB(cuDevicePrimaryCtxRelease_v2, int device) END
STUB(cuCtxGetCurrent, void** context) *context = NULL; END
STUB(cuCtxSetCurrent, void* context) END
STUB(cuCtxSynchronize, void) END
STUB(cuMemGetInfo_v2, size_t* left, size_t* all) *left = 3ul << 30; *all = 4ul << 30; END
STUB(cuMemAlloc_v2, unsigned long* address, size_t bytes) *address = (unsigned long)calloc(1, bytes); END
STUB(cuMemFree_v2, unsigned long address) free((void*)address); END
STUB(cuMemHostAlloc, void** address, size_t bytes, unsigned flags) *address = calloc(1, bytes); END
STUB(cuMemFreeHost, void* address) free(address); END
STUB(cuMemcpyHtoDAsync_v2, unsigned long to, const void* from, size_t bytes, void* stream)
  memcpy((void*)to, from, bytes); END
STUB(cuMemcpyDtoHAsync_v2, void* to, unsigned long from, size_t bytes, void* stream)
  memcpy(to, (const void*)from, bytes); END
STUB(cuStreamCreate, void** stream, unsigned flags) *stream = handle; END
STUB(cuStreamDestroy_v2, void* stream) END
STUB(cuStreamSynchronize, void* stream) END
STUB(cuStreamWaitEvent, void* stream, void* event, unsigned flags) END
STUB(cuEventCreate, void** event, unsigned flags) *event = handle; END
STUB(cuEventDestroy_v2, void* event) END
STUB(cuEventRecord, void* event, void* stream) END
STUB(cuEventQuery, void* event) END
STUB(cuEventSynchronize, void* event) END
STUB(cuModuleUnload, void* module) END
STUB(cuModuleGetFunction, void** function, void* module, const char* name) *function = handle; END
STUB(cuFuncSetAttribute, void* function, int which, int value) END
STUB(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, void* function, int threads, size_t bytes)
  *blocks = 4; END
STUB(cuLaunchKernel, void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
     unsigned bz, unsigned shared, void* stream, void** arguments, void** more) END

// What is loaded: `sm_NN` for machine code of CUDA 12 (its architecture is in the flags of the ELF file), `ptx`, or `fatbin`.
STUB(cuModuleLoadData, void** module, const unsigned char* image)
  *module = handle;
  char text[32] = "image unknown";
  unsigned flags, magic;
  memcpy(&magic, image, 4);
  memcpy(&flags, image + 48, 4);
  if (magic == 0xba55ed50) strcpy(text, "image fatbin");
  else if (memcmp(image, "\x7f" "ELF", 4) == 0) snprintf(text, sizeof text, "image sm_%u", flags & 255);
  else if (strstr((const char*)image, ".version") != NULL) strcpy(text, "image ptx");
  called(text); END
