/* An NVTX consumer: says which ranges a process emits, as a profiler would see them.
 *
 * The library that NVTX_INJECTION64_PATH names is loaded by every copy of NVTX in a process (DALI,
 * PyTorch and our library have one each) at its first call, and `InitializeInjectionNvtx2` is
 * called with that copy's tables of functions. We put our own functions for domains, strings and
 * ranges there; the others keep doing nothing.
 *
 * For each range that ends, one line is appended to the file that ZARR_DALI_TEST_NVTX_OUTPUT names,
 * with tabs between:
 *
 *     domain  thread  number of the thread  name  payload  begin  end
 *
 * with "-" where there is none and nanoseconds of CLOCK_MONOTONIC. The names must not have tabs in
 * them.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 96, DEPTH = 64, STARTED = 256 };

typedef struct {
  const char* domain;
  char name[NAME];
  char payload[32];
  long long begin_ns;
} Range;

static int output = -1;

/* Ranges that were pushed on this thread and not popped. Each domain has a stack of its own; here
 * they share one. */
static _Thread_local Range pushed[DEPTH];
static _Thread_local int depth;

/* Ranges that were started and not ended, by any thread; an id of 0 is a free place. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Range started[STARTED];
static nvtxRangeId_t ids[STARTED];
static nvtxRangeId_t last_id;

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* What cannot be told as it is must not look as if it had not been. */
static void fail(const char* problem) {
  fprintf(stderr, "NVTX consumer: %s\n", problem);
  abort();
}

static void begin(Range* range, const char* domain, const char* name) {
  range->domain = domain;
  snprintf(range->name, NAME, "%s", name ? name : "-");
  strcpy(range->payload, "-");
  range->begin_ns = now_ns();
}

static void begin_with(Range* range, const char* domain, const nvtxEventAttributes_t* event) {
  char wide[NAME] = "-";
  const char* name = NULL;
  switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      name = event->message.ascii;
      break;
    case NVTX_MESSAGE_TYPE_REGISTERED: /* What `register_string` returned. */
      name = (const char*)event->message.registered;
      break;
    case NVTX_MESSAGE_TYPE_UNICODE:
      snprintf(wide, NAME, "%ls", event->message.unicode);
      name = wide;
      break;
    default:
      break;
  }
  begin(range, domain, name);
  char* to = range->payload;
  switch (event->payloadType) {
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
      snprintf(to, sizeof range->payload, "%llu", (unsigned long long)event->payload.ullValue);
      break;
    case NVTX_PAYLOAD_TYPE_INT64:
      snprintf(to, sizeof range->payload, "%lld", (long long)event->payload.llValue);
      break;
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
      snprintf(to, sizeof range->payload, "%u", (unsigned)event->payload.uiValue);
      break;
    case NVTX_PAYLOAD_TYPE_INT32:
      snprintf(to, sizeof range->payload, "%d", (int)event->payload.iValue);
      break;
    case NVTX_PAYLOAD_TYPE_DOUBLE:
      snprintf(to, sizeof range->payload, "%g", event->payload.dValue);
      break;
    case NVTX_PAYLOAD_TYPE_FLOAT:
      snprintf(to, sizeof range->payload, "%g", event->payload.fValue);
      break;
    default:
      break;
  }
}

static void tell(const Range* range) {
  char thread[16] = "-";
  char line[NAME + 256];
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  int length = snprintf(line, sizeof line, "%s\t%s\t%ld\t%s\t%s\t%lld\t%lld\n",
                        range->domain ? range->domain : "-", thread, syscall(SYS_gettid),
                        range->name, range->payload, range->begin_ns, now_ns());
  /* One call for each line: lines of several threads do not mix. */
  if (length >= (int)sizeof line || write(output, line, length) != length)
    fail("a line could not be written");
}

static int push(const char* domain, const nvtxEventAttributes_t* event, const char* name) {
  if (depth == DEPTH) fail("too many ranges inside each other");
  if (event) {
    begin_with(&pushed[depth], domain, event);
  } else {
    begin(&pushed[depth], domain, name);
  }
  return depth++;
}

/* Ends the innermost range of the domain. */
static int pop(const char* domain) {
  for (int i = depth - 1; i >= 0; i--) {
    if (pushed[i].domain != domain) continue;
    tell(&pushed[i]);
    depth--;
    memmove(&pushed[i], &pushed[i + 1], (depth - i) * sizeof(Range));
    return i;
  }
  return NVTX_NO_PUSH_POP_TRACKING;
}

static nvtxRangeId_t start(const char* domain, const nvtxEventAttributes_t* event,
                           const char* name) {
  pthread_mutex_lock(&lock);
  int place = 0;
  while (place < STARTED && ids[place]) place++;
  if (place == STARTED) fail("too many ranges at the same time");
  nvtxRangeId_t id = ids[place] = ++last_id;
  if (event) {
    begin_with(&started[place], domain, event);
  } else {
    begin(&started[place], domain, name);
  }
  pthread_mutex_unlock(&lock);
  return id;
}

static void end(nvtxRangeId_t id) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < STARTED; i++) {
    if (id == 0 || ids[i] != id) continue;
    tell(&started[i]);
    ids[i] = 0;
  }
  pthread_mutex_unlock(&lock);
}

/* What NVTX calls. A domain's handle is its name, and so is a registered string's: both live as
 * long as the process. */
static nvtxDomainHandle_t create_domain(const char* name) {
  return (nvtxDomainHandle_t)strdup(name);
}
static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char* text) {
  (void)domain;
  return (nvtxStringHandle_t)strdup(text);
}
static int domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return push((const char*)domain, event, NULL);
}
static int domain_pop(nvtxDomainHandle_t domain) { return pop((const char*)domain); }
static nvtxRangeId_t domain_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return start((const char*)domain, event, NULL);
}
static void domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  (void)domain;
  end(id);
}
static int plain_push_ex(const nvtxEventAttributes_t* event) { return push(NULL, event, NULL); }
static int plain_push(const char* name) { return push(NULL, NULL, name); }
static int plain_pop(void) { return pop(NULL); }
static nvtxRangeId_t plain_start_ex(const nvtxEventAttributes_t* event) {
  return start(NULL, event, NULL);
}
static nvtxRangeId_t plain_start(const char* name) { return start(NULL, NULL, name); }

typedef struct {
  unsigned id;
  NvtxFunctionPointer function;
} Ours;

#define OURS(id, function) {id, (NvtxFunctionPointer)(function)}

static const Ours core[] = {
    OURS(NVTX_CBID_CORE_RangePushEx, plain_push_ex),
    OURS(NVTX_CBID_CORE_RangePushA, plain_push),
    OURS(NVTX_CBID_CORE_RangePop, plain_pop),
    OURS(NVTX_CBID_CORE_RangeStartEx, plain_start_ex),
    OURS(NVTX_CBID_CORE_RangeStartA, plain_start),
    OURS(NVTX_CBID_CORE_RangeEnd, end),
};

static const Ours core2[] = {
    OURS(NVTX_CBID_CORE2_DomainCreateA, create_domain),
    OURS(NVTX_CBID_CORE2_DomainRegisterStringA, register_string),
    OURS(NVTX_CBID_CORE2_DomainRangePushEx, domain_push),
    OURS(NVTX_CBID_CORE2_DomainRangePop, domain_pop),
    OURS(NVTX_CBID_CORE2_DomainRangeStartEx, domain_start),
    OURS(NVTX_CBID_CORE2_DomainRangeEnd, domain_end),
};

static void install(const NvtxExportTableCallbacks* callbacks, NvtxCallbackModule module,
                    const Ours* ours, size_t count) {
  NvtxFunctionTable table;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(module, &table, &size))
    fail("NVTX has no table of its functions");
  for (size_t i = 0; i < count; i++) {
    if (ours[i].id >= size) fail("NVTX lacks a function");
    *table[ours[i].id] = ours[i].function;
  }
}

/* Called once for each copy of NVTX in the process; returns 1 for "the tool is there". */
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  pthread_mutex_lock(&lock);
  if (output < 0) {
    const char* path = getenv("ZARR_DALI_TEST_NVTX_OUTPUT");
    output = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (output < 0) fail("ZARR_DALI_TEST_NVTX_OUTPUT names no file that can be written");
  }
  pthread_mutex_unlock(&lock);
  const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
  if (!callbacks) fail("NVTX has no tables");
  install(callbacks, NVTX_CB_MODULE_CORE, core, sizeof core / sizeof *core);
  install(callbacks, NVTX_CB_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
  return 1;
}
